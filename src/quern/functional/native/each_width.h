/* The functions of the file LOOPS for each kind of vector there is: `number` is the vector, NAME(name) names a function. */
#if defined(BROAD)
#define number broad_vector
#define NAME(name) name##_broad
#include LOOPS
#undef number
#undef NAME
#endif

#define number vector
#define NAME(name) name##_wide
#include LOOPS
#undef number
#undef NAME

#if defined(NARROW)
#define number narrow_vector
#define NAME(name) name##_narrow
#include LOOPS
#undef number
#undef NAME
#endif

#define number float
#define NAME(name) name##_single
#include LOOPS
#undef number
#undef NAME
#undef LOOPS
