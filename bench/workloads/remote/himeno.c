/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A 19-point Jacobi stencil: Poisson's equation for the pressure of an incompressible flow in curvilinear coordinates,
 * as the Himeno benchmark describes it. Every repetition reads fourteen arrays from one end to the other and writes
 * two: as local as memory accesses get.
 *
 * Sizes: -DSIZE_S (64 x 64 x 128), -DSIZE_M (128 x 128 x 256, the default), -DSIZE_L (256 x 256 x 512). Argument:
 * repetitions.
 *
 * Verified by a property of the initial state: the pressure depends on the first coordinate only, and so do the walls,
 * hence it must stay a mirror image of itself along the other two; and the residual must fall.
 */
#include <math.h>

#include "task.h"

#if defined(SIZE_S)
enum { I = 64, J = 64, K = 128 };
#elif defined(SIZE_L)
enum { I = 256, J = 256, K = 512 };
#else
enum { I = 128, J = 128, K = 256 };
#endif

typedef float Grid[I][J][K];

static Grid a[4], b[3], c[3], p, bnd, wrk1, wrk2;

static const float omega = 0.8f;

static void fill(Grid grid, float value)
{
	for (int i = 0; i < I; i++)
		for (int j = 0; j < J; j++)
			for (int k = 0; k < K; k++)
				grid[i][j][k] = value;
}

static void set_up(void)
{
	for (int nth = 0; nth < 3; nth++) {
		fill(a[nth], 1.0f);
		fill(b[nth], 0.0f);
		fill(c[nth], 1.0f);
	}
	fill(a[3], 1.0f / 6.0f);
	fill(bnd, 1.0f);
	fill(wrk1, 0.0f);
	fill(wrk2, 0.0f);
	for (int i = 0; i < I; i++)
		for (int j = 0; j < J; j++)
			for (int k = 0; k < K; k++)
				p[i][j][k] = (float)(i * i) / (float)((I - 1) * (I - 1));
}

/* One repetition; the sum of the squared residuals. */
static double relax(void)
{
	double residual = 0.0;
	SECTION_BEGINS(0);
	for (int i = 1; i < I - 1; i++)
		for (int j = 1; j < J - 1; j++) {
			float of_row = 0.0f;
			for (int k = 1; k < K - 1; k++) {
				float mixed_ij = p[i + 1][j + 1][k] - p[i + 1][j - 1][k] - p[i - 1][j + 1][k] + p[i - 1][j - 1][k];
				float mixed_jk = p[i][j + 1][k + 1] - p[i][j - 1][k + 1] - p[i][j + 1][k - 1] + p[i][j - 1][k - 1];
				float mixed_ik = p[i + 1][j][k + 1] - p[i - 1][j][k + 1] - p[i + 1][j][k - 1] + p[i - 1][j][k - 1];
				float around = a[0][i][j][k] * p[i + 1][j][k] + a[1][i][j][k] * p[i][j + 1][k] +
					       a[2][i][j][k] * p[i][j][k + 1] + b[0][i][j][k] * mixed_ij +
					       b[1][i][j][k] * mixed_jk + b[2][i][j][k] * mixed_ik +
					       c[0][i][j][k] * p[i - 1][j][k] + c[1][i][j][k] * p[i][j - 1][k] +
					       c[2][i][j][k] * p[i][j][k - 1] + wrk1[i][j][k];
				float off = (around * a[3][i][j][k] - p[i][j][k]) * bnd[i][j][k];
				of_row += off * off;
				wrk2[i][j][k] = p[i][j][k] + omega * off;
			}
			residual += of_row;
		}
	SECTION_ENDS(0);
	SECTION_BEGINS(1);
	for (int i = 1; i < I - 1; i++)
		for (int j = 1; j < J - 1; j++)
			for (int k = 1; k < K - 1; k++)
				p[i][j][k] = wrk2[i][j][k];
	SECTION_ENDS(1);
	return residual;
}

int main(int count, char **words)
{
	long wanted = repetitions(count, words, 30);
	double first = 0.0, last = 0.0;
	set_up();
	double begun = now_s();
	for (long nth = 0; nth < wanted; nth++) {
		last = relax();
		if (nth == 0)
			first = last;
	}
	double elapsed = now_s() - begun;
	require(isfinite(last) && last > 0.0 && (wanted == 1 || last < first), "the residual does not fall");
	for (int i = 0; i < I; i++)
		for (int j = 0; j < J; j++)
			for (int k = 0; k < K; k++) {
				require(fabsf(p[i][j][k] - p[i][J - 1 - j][k]) < 1e-4f, "the pressure is not symmetric along j");
				require(fabsf(p[i][j][k] - p[i][j][K - 1 - k]) < 1e-4f, "the pressure is not symmetric along k");
			}
	report(checksum(p, sizeof p), elapsed);
	return 0;
}
