/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A Fourier transform in three dimensions, in place: radix-2 transforms along x; x and y are exchanged, and the same
 * again; x and z are exchanged, and the same again; and all of it back with the inverse. The first exchange stays
 * within a plane, the second goes across all of them.
 *
 * -DSIDE=256: points along an edge, a power of two. Argument: number of round trips.
 *
 * Verified: the inverse restores the original values, and the square of the norm is kept (Parseval).
 */
#include <math.h>

#include "task.h"

#ifndef SIDE
#define SIDE 256
#endif
_Static_assert(SIDE > 1 && (SIDE & (SIDE - 1)) == 0, "SIDE is a power of two");

typedef struct {
	double re, im;
} Complex;

static Complex cube[SIDE][SIDE][SIDE];
static Complex roots[SIDE / 2];
static int reversed[SIDE];

static void set_up(void)
{
	for (int at = 0; at < SIDE / 2; at++) {
		double angle = -2.0 * 3.14159265358979323846 * at / SIDE;
		roots[at] = (Complex){ cos(angle), sin(angle) };
	}
	for (int at = 1; at < SIDE; at++)
		reversed[at] = reversed[at / 2] / 2 + (at % 2) * (SIDE / 2);
	uint64_t nth = 0;
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			for (int x = 0; x < SIDE; x++, nth += 2)
				cube[z][y][x] = (Complex){ fraction(nth) - 0.5, fraction(nth + 1) - 0.5 };
}

/* One line, in place; `sign` -1 for the inverse, without its factor. */
static void transform(Complex *line, double sign)
{
	for (int at = 0; at < SIDE; at++) {
		int other = reversed[at];
		if (other > at) {
			Complex kept = line[at];
			line[at] = line[other];
			line[other] = kept;
		}
	}
	for (int half = 1, step = SIDE / 2; half < SIDE; half *= 2, step /= 2)
		for (int block = 0; block < SIDE; block += 2 * half)
			for (int at = 0; at < half; at++) {
				Complex root = roots[at * step], *low = &line[block + at], *high = low + half;
				double im = sign * root.im;
				double re_turned = high->re * root.re - high->im * im;
				double im_turned = high->re * im + high->im * root.re;
				high->re = low->re - re_turned;
				high->im = low->im - im_turned;
				low->re += re_turned;
				low->im += im_turned;
			}
}

static void transform_lines(double sign)
{
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			transform(cube[z][y], sign);
}

static void exchange_x_and_y(void)
{
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			for (int x = y + 1; x < SIDE; x++) {
				Complex kept = cube[z][y][x];
				cube[z][y][x] = cube[z][x][y];
				cube[z][x][y] = kept;
			}
}

static void exchange_x_and_z(void)
{
	for (int y = 0; y < SIDE; y++)
		for (int z = 0; z < SIDE; z++)
			for (int x = z + 1; x < SIDE; x++) {
				Complex kept = cube[z][y][x];
				cube[z][y][x] = cube[x][y][z];
				cube[x][y][z] = kept;
			}
}

static void forward(void)
{
	transform_lines(1.0);
	exchange_x_and_y();
	transform_lines(1.0);
	exchange_x_and_z();
	transform_lines(1.0);
}

static void back(void)
{
	transform_lines(-1.0);
	exchange_x_and_z();
	transform_lines(-1.0);
	exchange_x_and_y();
	transform_lines(-1.0);
	double factor = 1.0 / ((double)SIDE * SIDE * SIDE);
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			for (int x = 0; x < SIDE; x++) {
				cube[z][y][x].re *= factor;
				cube[z][y][x].im *= factor;
			}
}

static double square_of_norm(void)
{
	double sum = 0.0;
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			for (int x = 0; x < SIDE; x++)
				sum += cube[z][y][x].re * cube[z][y][x].re + cube[z][y][x].im * cube[z][y][x].im;
	return sum;
}

int main(int count, char **words)
{
	long wanted = repetitions(count, words, 1);
	set_up();
	double before = square_of_norm(), elapsed = 0.0;
	uint64_t sum = 0;
	for (long nth = 0; nth < wanted; nth++) {
		double begun = now_s();
		forward();
		elapsed += now_s() - begun;
		double after = square_of_norm() / ((double)SIDE * SIDE * SIDE);
		require(fabs(after - before) < 1e-9 * before, "the norm is not kept");
		sum = checksum(cube, sizeof cube);
		begun = now_s();
		back();
		elapsed += now_s() - begun;
	}
	uint64_t nth = 0;
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			for (int x = 0; x < SIDE; x++, nth += 2) {
				require(fabs(cube[z][y][x].re - (fraction(nth) - 0.5)) < 1e-10, "the inverse");
				require(fabs(cube[z][y][x].im - (fraction(nth + 1) - 0.5)) < 1e-10, "the inverse");
			}
	report(sum, elapsed);
	return 0;
}
