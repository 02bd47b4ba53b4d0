/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The method of conjugate gradients on a sparse matrix in CSR: a 27-point operator on a cube whose points are numbered in a
 * random order. Each repetition reads the matrix from one end to the other, and a vector at random places.
 *
 * -DSIDE=80: points along an edge. Argument: repetitions.
 *
 * Verified: the right-hand side is the matrix times a vector of ones, so the solution is known.
 */
#include <math.h>

#include "task.h"

#ifndef SIDE
#define SIDE 80
#endif
enum { ROWS = SIDE * SIDE * SIDE, ENTRIES = (3 * SIDE - 2) * (3 * SIDE - 2) * (3 * SIDE - 2) };

static double value[ENTRIES];
static uint32_t column[ENTRIES], row_start[ROWS + 1], number_of[ROWS], point_of[ROWS];
static double x[ROWS], r[ROWS], p[ROWS], q[ROWS];

/* Numbers the points in a random order (Fisher and Yates). */
static void number(void)
{
	for (uint32_t at = 0; at < ROWS; at++)
		point_of[at] = at;
	for (uint32_t at = ROWS - 1; at > 0; at--) {
		uint32_t other = (uint32_t)(scrambled(at) % (at + 1)), kept = point_of[at];
		point_of[at] = point_of[other];
		point_of[other] = kept;
	}
	for (uint32_t row = 0; row < ROWS; row++)
		number_of[point_of[row]] = row;
}

/* Diagonal 27, each neighbour in the cube -1: symmetric, and positive definite, since the diagonal exceeds the rest of its row. */
static void assemble(void)
{
	uint32_t at = 0;
	for (uint32_t row = 0; row < ROWS; row++) {
		int here = (int)point_of[row], z = here / (SIDE * SIDE), y = here / SIDE % SIDE, h = here % SIDE;
		row_start[row] = at;
		for (int dz = -1; dz <= 1; dz++)
			for (int dy = -1; dy <= 1; dy++)
				for (int dx = -1; dx <= 1; dx++) {
					int nz = z + dz, ny = y + dy, nx = h + dx;
					if (nz < 0 || ny < 0 || nx < 0 || nz >= SIDE || ny >= SIDE || nx >= SIDE)
						continue;
					column[at] = number_of[(nz * SIDE + ny) * SIDE + nx];
					value[at++] = dz == 0 && dy == 0 && dx == 0 ? 27.0 : -1.0;
				}
	}
	row_start[ROWS] = at;
	require(at == ENTRIES, "the number of entries");
}

static void multiply(const double *vector, double *product)
{
	for (uint32_t row = 0; row < ROWS; row++) {
		double sum = 0.0;
		for (uint32_t at = row_start[row]; at < row_start[row + 1]; at++)
			sum += value[at] * vector[column[at]];
		product[row] = sum;
	}
}

static double dot(const double *one, const double *other)
{
	double sum = 0.0;
	for (uint32_t row = 0; row < ROWS; row++)
		sum += one[row] * other[row];
	return sum;
}

int main(int count, char **words)
{
	long wanted = repetitions(count, words, 40);
	number();
	assemble();
	for (uint32_t row = 0; row < ROWS; row++)
		p[row] = 1.0;
	multiply(p, r);
	for (uint32_t row = 0; row < ROWS; row++)
		p[row] = r[row];
	double begun = now_s();
	double square = dot(r, r), first = square;
	for (long nth = 0; nth < wanted; nth++) {
		multiply(p, q);
		double step = square / dot(p, q);
		for (uint32_t row = 0; row < ROWS; row++) {
			x[row] += step * p[row];
			r[row] -= step * q[row];
		}
		double before = square;
		square = dot(r, r);
		for (uint32_t row = 0; row < ROWS; row++)
			p[row] = r[row] + square / before * p[row];
	}
	double elapsed = now_s() - begun;
	/* The true residual, not the one carried along, and the distance from the known solution. */
	multiply(x, q);
	double residual = 0.0, worst = 0.0;
	for (uint32_t row = 0; row < ROWS; row++) {
		double right = 0.0;
		for (uint32_t at = row_start[row]; at < row_start[row + 1]; at++)
			right += value[at];
		residual += (right - q[row]) * (right - q[row]);
		worst = fmax(worst, fabs(x[row] - 1.0));
	}
	require(fabs(residual - square) < 1e-9 * first, "the residual");
	require(wanted < 30 || worst < 0.1, "the solution");
	report(checksum(x, sizeof x), elapsed);
	return 0;
}
