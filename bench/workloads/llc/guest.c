/* First and only program of a virtual machine: fills some memory with pages that the same program in another machine
 * has too, reports this, and sleeps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGES = 16384, PAGE = 4096 };

int main(void) {
	char *memory = malloc((size_t)PAGES * PAGE);
	for (int page = 0; memory != NULL && page < PAGES; page++) {
		memset(memory + (size_t)page * PAGE, 1, PAGE);
		memcpy(memory + (size_t)page * PAGE, &page, sizeof page);
	}
	puts(memory == NULL ? "guest without memory" : "guest up");
	fflush(stdout);
	for (;;)
		sleep(1000);
}
