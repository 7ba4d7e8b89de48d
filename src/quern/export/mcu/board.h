/* What main.c asks of the board. Here it is an emulated one (cortex-m.c) or this computer (host.c); yours has a serial
 * port, a display, a lamp. */
#ifndef BOARD_H
#define BOARD_H

/* A line with a text and a number. */
void board_print(const char *text, int number);

#endif
