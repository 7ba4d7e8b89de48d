/* This computer as the board. */
#include "board.h"

#include <stdio.h>

void board_print(const char *text, int number) { printf("%s %d\n", text, number); }
