/* A C program that embeds the engine and has no handler of SIGPIPE. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

int main(int argc, char **argv)
{
	int failed = 2;

	signal(SIGPIPE, SIG_DFL);
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		failed = orbitte_serve(atoi(argv[2]));
	if (argc == 7 && strcmp(argv[1], "write") == 0)
		failed = orbitte_write(atoi(argv[2]), argv[3], argv[4], strtoull(argv[5], NULL, 10), atoi(argv[6]));
	if (failed)
		return failed;
	puts("alive");
	return 0;
}
