/* As string.h beside it. */
float sqrtf(float x);
