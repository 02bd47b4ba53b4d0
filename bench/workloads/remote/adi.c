/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An implicit solver by alternating directions (ADI) on a cube, five unknowns a cell, coupled: the scheme of the
 * compressible flow solvers from which the programs BT and SP of the NAS benchmarks were drawn, written from the idea.
 * A repetition computes the right-hand side and then sweeps along x, y and z. A sweep assembles, for each cell, three
 * blocks of 5 x 5 into one static array, and then solves a block-tridiagonal system for each line: forward elimination,
 * back substitution.
 *
 * Along x the cells of a line are neighbours. Along y they are a row apart, along z a plane: a line then touches one
 * page in each plane, and the next line the same pages again. So a large page serves the sweep along x; along z it
 * fetches data that will be evicted before it is used.
 *
 * -DSIDE=64: cells along an edge. Argument: repetitions. Marked sections: 0 right-hand side; 1, 2, 3 assembly along x,
 * y, z; 4, 5, 6 solution along x, y, z; 7 the update.
 *
 * Verified: sources are chosen so that a known field is at rest; a disturbance of it must die away, and each line's
 * solution is put into its own equations at some places.
 */
#include <math.h>

#include "task.h"

#ifndef SIDE
#define SIDE 64
#endif
enum { UNKNOWNS = 5, DIRECTIONS = 3 };
enum { LOWER, DIAGONAL, UPPER };

typedef double Vector[UNKNOWNS];
typedef double Block[UNKNOWNS][UNKNOWNS];

static Vector field[SIDE][SIDE][SIDE], source[SIDE][SIDE][SIDE], right[SIDE][SIDE][SIDE];
static Block lhs[SIDE][SIDE][SIDE][3];

/* Coupling between the unknowns. */
static Block coupling[DIRECTIONS];

static const double time_step = 0.4, transport = 0.15, mixing = 0.1;

/* The steps from a cell to its neighbour, in cells. */
static const int stride[DIRECTIONS] = { 1, SIDE, SIDE * SIDE };

/* Distance of the walls, in steps. */
static const double width = SIDE - 1;

/* The field at rest: smooth, and different in each unknown. */
static void at_rest(int z, int y, int x, Vector value)
{
	for (int m = 0; m < UNKNOWNS; m++)
		value[m] = 1.0 + 0.3 * (m + 1) * sin(0.9 * x / width + 0.5 * m) * cos(1.1 * y / width) +
			   0.2 * z / width * (x / width - y / width);
}

/* The strength of the transport along one direction in one cell: it depends on the field there, so the blocks change. */
static inline double speed(const Vector cell, int direction)
{
	return transport * cell[1 + direction] / (1.0 + cell[0] * cell[0]);
}

/* The operator along one direction at `cell`: diffusion, transport, mixing. */
static inline void add_operator(const Vector *cell, int direction, double factor, Vector to)
{
	const Vector *before = cell - stride[direction], *after = cell + stride[direction];
	double here = speed(*cell, direction);
	for (int m = 0; m < UNKNOWNS; m++) {
		double sum = (*before)[m] - 2.0 * (*cell)[m] + (*after)[m];
		for (int n = 0; n < UNKNOWNS; n++)
			sum += coupling[direction][m][n] * (here * ((*before)[n] - (*after)[n]) - mixing * (*cell)[n]);
		to[m] += factor * sum;
	}
}

static void set_up(void)
{
	for (int direction = 0; direction < DIRECTIONS; direction++)
		for (int m = 0; m < UNKNOWNS; m++)
			for (int n = 0; n < UNKNOWNS; n++)
				coupling[direction][m][n] = m == n ? 1.0 : 0.1 * cos(direction + 2.0 * m - n);
	for (int z = 0; z < SIDE; z++)
		for (int y = 0; y < SIDE; y++)
			for (int x = 0; x < SIDE; x++)
				at_rest(z, y, x, field[z][y][x]);
	/* At rest, the operators and the source cancel out. */
	for (int z = 1; z < SIDE - 1; z++)
		for (int y = 1; y < SIDE - 1; y++)
			for (int x = 1; x < SIDE - 1; x++)
				for (int direction = 0; direction < DIRECTIONS; direction++)
					add_operator(&field[z][y][x], direction, -1.0, source[z][y][x]);
	for (int z = 1; z < SIDE - 1; z++)
		for (int y = 1; y < SIDE - 1; y++)
			for (int x = 1; x < SIDE - 1; x++)
				for (int m = 0; m < UNKNOWNS; m++)
					field[z][y][x][m] += 0.1 * (fraction((uint64_t)((z * SIDE + y) * SIDE + x)) - 0.5);
}

static void compute_right(void)
{
	SECTION_BEGINS(0);
	for (int z = 1; z < SIDE - 1; z++)
		for (int y = 1; y < SIDE - 1; y++)
			for (int x = 1; x < SIDE - 1; x++) {
				double *to = right[z][y][x];
				for (int m = 0; m < UNKNOWNS; m++)
					to[m] = time_step * source[z][y][x][m];
				for (int direction = 0; direction < DIRECTIONS; direction++)
					add_operator(&field[z][y][x], direction, time_step, to);
			}
	SECTION_ENDS(0);
}

/* The blocks of one cell: the identity less the time step times the operator along one direction. */
static void assemble_cell(Block *blocks, const Vector cell, int direction)
{
	double moved = time_step * speed(cell, direction);
	for (int m = 0; m < UNKNOWNS; m++)
		for (int n = 0; n < UNKNOWNS; n++) {
			double coupled = coupling[direction][m][n], same = m == n ? 1.0 : 0.0;
			blocks[LOWER][m][n] = -time_step * same - moved * coupled;
			blocks[DIAGONAL][m][n] = (1.0 + 2.0 * time_step) * same + time_step * mixing * coupled;
			blocks[UPPER][m][n] = -time_step * same + moved * coupled;
		}
}

static void assemble(int direction)
{
	SECTION_BEGINS(1 + direction);
	for (int z = 1; z < SIDE - 1; z++)
		for (int y = 1; y < SIDE - 1; y++)
			for (int x = 1; x < SIDE - 1; x++)
				assemble_cell(lhs[z][y][x], field[z][y][x], direction);
	SECTION_ENDS(1 + direction);
}

/* `of` -= `block` `vector`. */
static inline void subtract_product(const Block block, const Vector vector, Vector of)
{
	for (int m = 0; m < UNKNOWNS; m++) {
		double sum = 0.0;
		for (int n = 0; n < UNKNOWNS; n++)
			sum += block[m][n] * vector[n];
		of[m] -= sum;
	}
}

/* `of` -= `left` `other`. */
static inline void subtract_block_product(const Block left, const Block other, Block of)
{
	for (int m = 0; m < UNKNOWNS; m++)
		for (int k = 0; k < UNKNOWNS; k++) {
			double factor = left[m][k];
			for (int n = 0; n < UNKNOWNS; n++)
				of[m][n] -= factor * other[k][n];
		}
}

/* Solves `diagonal` times unknown = `block` and = `vector`, in place, by elimination (Gauss and Jordan). The diagonal leads. */
static inline void divide(Block diagonal, Block block, Vector vector)
{
	for (int pivot = 0; pivot < UNKNOWNS; pivot++) {
		double factor = 1.0 / diagonal[pivot][pivot];
		for (int n = pivot + 1; n < UNKNOWNS; n++)
			diagonal[pivot][n] *= factor;
		for (int n = 0; n < UNKNOWNS; n++)
			block[pivot][n] *= factor;
		vector[pivot] *= factor;
		for (int m = 0; m < UNKNOWNS; m++) {
			if (m == pivot)
				continue;
			factor = diagonal[m][pivot];
			for (int n = pivot + 1; n < UNKNOWNS; n++)
				diagonal[m][n] -= factor * diagonal[pivot][n];
			for (int n = 0; n < UNKNOWNS; n++)
				block[m][n] -= factor * block[pivot][n];
			vector[m] -= factor * vector[pivot];
		}
	}
}

/* One line: `blocks` and `values` point to its first inner cell, the others are `step` cells further each. */
static void solve_line(Block *blocks, Vector *values, int step)
{
	for (int at = 0; at < SIDE - 2; at++) {
		Block *here = blocks + 3l * step * at;
		Vector *value = values + (long)step * at;
		if (at > 0) { /* beyond the wall nothing changes */
			subtract_product(here[LOWER], *(value - step), *value);
			subtract_block_product(here[LOWER], *(here - 3 * step + UPPER), here[DIAGONAL]);
		}
		divide(here[DIAGONAL], here[UPPER], *value);
	}
	for (int at = SIDE - 4; at >= 0; at--) {
		Vector *value = values + (long)step * at;
		subtract_product(blocks[3l * step * at + UPPER], *(value + step), *value);
	}
}

static void solve(int direction)
{
	int step = stride[direction];
	SECTION_BEGINS(4 + direction);
	for (int outer = 1; outer < SIDE - 1; outer++)
		for (int inner = 1; inner < SIDE - 1; inner++) {
			int z = direction == 2 ? 1 : outer;
			int y = direction == 1 ? 1 : direction == 2 ? outer : inner;
			int x = direction == 0 ? 1 : inner;
			solve_line(lhs[z][y][x], &right[z][y][x], step);
		}
	SECTION_ENDS(4 + direction);
}

static void update(void)
{
	SECTION_BEGINS(7);
	for (int z = 1; z < SIDE - 1; z++)
		for (int y = 1; y < SIDE - 1; y++)
			for (int x = 1; x < SIDE - 1; x++)
				for (int m = 0; m < UNKNOWNS; m++)
					field[z][y][x][m] += right[z][y][x][m];
	SECTION_ENDS(7);
}

/* Mean distance of the field from rest. */
static double disturbance(void)
{
	double sum = 0.0;
	for (int z = 1; z < SIDE - 1; z++)
		for (int y = 1; y < SIDE - 1; y++)
			for (int x = 1; x < SIDE - 1; x++) {
				Vector rest;
				at_rest(z, y, x, rest);
				for (int m = 0; m < UNKNOWNS; m++)
					sum += (field[z][y][x][m] - rest[m]) * (field[z][y][x][m] - rest[m]);
			}
	return sqrt(sum / ((double)(SIDE - 2) * (SIDE - 2) * (SIDE - 2) * UNKNOWNS));
}

/* A line in the middle of each direction, solved and put into its own equations. */
static void check_a_line(int direction)
{
	static Vector before[SIDE];
	int middle = SIDE / 2, step = stride[direction];
	int z = direction == 2 ? 1 : middle, y = direction == 1 ? 1 : middle, x = direction == 0 ? 1 : middle;
	Vector *value = &right[z][y][x], *cell = &field[z][y][x];
	for (int at = 0; at < SIDE - 2; at++)
		for (int m = 0; m < UNKNOWNS; m++)
			before[at][m] = value[(long)step * at][m] = fraction((uint64_t)(at * UNKNOWNS + m)) - 0.5;
	assemble(direction);
	solve_line(lhs[z][y][x], value, step);
	for (int at = 0; at < SIDE - 2; at++) {
		Block blocks[3];
		assemble_cell(blocks, cell[(long)step * at], direction);
		if (at > 0)
			subtract_product(blocks[LOWER], value[(long)step * (at - 1)], before[at]);
		subtract_product(blocks[DIAGONAL], value[(long)step * at], before[at]);
		if (at < SIDE - 3)
			subtract_product(blocks[UPPER], value[(long)step * (at + 1)], before[at]);
		for (int m = 0; m < UNKNOWNS; m++)
			require(fabs(before[at][m]) < 1e-12, "a line does not solve its equations");
	}
}

int main(int count, char **words)
{
	long wanted = repetitions(count, words, 10);
	set_up();
	double first = disturbance();
	double begun = now_s();
	for (long nth = 0; nth < wanted; nth++) {
		compute_right();
		for (int direction = 0; direction < DIRECTIONS; direction++) {
			assemble(direction);
			solve(direction);
		}
		update();
	}
	double elapsed = now_s() - begun;
	double last = disturbance();
	require(last < first * pow(0.9, (double)wanted) || last < 1e-9, "the disturbance does not die away");
	uint64_t sum = checksum(field, sizeof field);
	for (int direction = 0; direction < DIRECTIONS; direction++)
		check_a_line(direction);
	report(sum, elapsed);
	return 0;
}
