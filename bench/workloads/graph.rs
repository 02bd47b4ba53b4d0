//! Breadth-first search and PageRank on a generated graph with edges as unevenly spread as in R-MAT (D. Chakrabarti et
//! al., "R-MAT: A Recursive Model for Graph Mining", SDM 2004).
//!
//! R-MAT chooses the row and the column of an edge bit by bit. Here each bit is 0 with a probability of 3/4, in rows
//! and columns alike (R-MAT with a = 9/16, b = c = 3/16, d = 1/16): then a row's share of the edges follows from its
//! number, and the graph is written in its final form at once. Vertices are renumbered so that the busy ones are
//! scattered.
//!
//! Prints a checksum and the time of search and ranks.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::workload;
use clap::Parser;
use units::Bytes;
use units::cast::index;
use units::spread::{Random, spread};

#[derive(Parser)]
struct Arguments {
    /// Memory of the graph and what is computed on it; rounded down to a power of two.
    #[arg(long)]
    size: Bytes,
    /// Rounds of PageRank.
    #[arg(long, default_value_t = 2)]
    rounds: u32,
}

/// Edges from a vertex, on average.
const DEGREE: u64 = 8;

/// Edges, their beginning, two ranks, the depth and a place in the queue.
const BYTES_PER_VERTEX: u64 = 4 * DEGREE + 8 + 2 * 8 + 4 + 4;

/// Probability of following an edge; otherwise the walk jumps to any vertex. The usual value.
const DAMPING: f64 = 0.85;

/// Depth of a vertex that the search has not met.
const UNSEEN: u32 = u32::MAX;

/// Edges by the vertex from which they come.
struct Graph {
    /// Start of each vertex's edges, and the end of the last ones.
    begins: Vec<u64>,
    /// Targets of the edges.
    ends: Vec<u32>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-graph", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.size >= Bytes::kib(64), "--size {}: expected 64 KiB or more", arguments.size);
    let bits = (arguments.size.0 / BYTES_PER_VERTEX).ilog2();
    ensure!(bits < 32, "--size {}: more vertices than 2^32", arguments.size);
    let graph = Graph::generate(bits);
    let begun = Instant::now();
    let depths = graph.depths_from(busiest(bits));
    let ranks = graph.ranks(arguments.rounds);
    let work_s = begun.elapsed().as_secs_f64();
    let by_depth =
        depths.iter().zip(0u64..).fold(0u64, |sum, (depth, at)| sum.wrapping_add(spread(at) ^ u64::from(*depth)));
    let checksum = ranks.iter().fold(by_depth, |sum, rank| spread(sum ^ rank.to_bits()));
    println!("checksum={checksum} work_s={work_s}");
    Ok(())
}

/// The new number of vertex `old` of 2^`bits`: another for each.
const fn renumbered(old: u32, bits: u32) -> u32 {
    old.wrapping_mul(0x9E37_79B1) & mask(bits)
}

/// The vertex from which most edges go.
const fn busiest(bits: u32) -> u32 {
    renumbered(0, bits)
}

const fn mask(bits: u32) -> u32 {
    if bits < 32 { (1 << bits) - 1 } else { u32::MAX }
}

impl Graph {
    /// A graph of 2^`bits` vertices, always the same.
    fn generate(bits: u32) -> Graph {
        let count = 1u64 << bits;
        let all = (count * DEGREE) as f64;
        // The share of a vertex is 3/4 for each bit of its old number that is 0, times 1/4 for each that is 1.
        let shares: Vec<f64> =
            (0..=bits).map(|ones| all * 0.75f64.powf(f64::from(bits - ones)) * 0.25f64.powf(f64::from(ones))).collect();
        let inverse = inverse_of(0x9E37_79B1);
        let mut random = Random::seeded(1);
        let mut begins = Vec::with_capacity(index(count) + 1);
        let mut ends = Vec::with_capacity(index(count * DEGREE));
        for vertex in 0..=mask(bits) {
            begins.push(ends.len() as u64);
            let old = vertex.wrapping_mul(inverse) & mask(bits);
            let share = shares[old.count_ones() as usize];
            let degree = share + random.fraction(); // the fraction by chance, so that the sum comes out right
            for _ in 0..whole(degree) {
                let [low, high] = halves(random.number());
                ends.push(renumbered(low & high & mask(bits), bits)); // a bit is 1 when both are
            }
        }
        begins.push(ends.len() as u64);
        Graph { begins, ends }
    }

    fn edges(&self, vertex: u32) -> &[u32] {
        let at = vertex as usize;
        &self.ends[index(self.begins[at])..index(self.begins[at + 1])]
    }

    /// Distance of each vertex from `first`, in edges.
    fn depths_from(&self, first: u32) -> Vec<u32> {
        let count = self.begins.len() - 1;
        let mut depths = vec![UNSEEN; count];
        let mut queue = Vec::with_capacity(count);
        depths[first as usize] = 0;
        queue.push(first);
        let mut next = 0;
        while let Some(&vertex) = queue.get(next) {
            next += 1;
            for &end in self.edges(vertex) {
                if depths[end as usize] == UNSEEN {
                    depths[end as usize] = depths[vertex as usize] + 1;
                    queue.push(end);
                }
            }
        }
        depths
    }

    /// PageRank on the graph with its edges turned round: each vertex collects from those to which its edges go.
    fn ranks(&self, rounds: u32) -> Vec<f64> {
        let count = self.begins.len() - 1;
        let mut ranks = vec![1.0 / count as f64; count];
        let mut collected = vec![0.0; count];
        for _ in 0..rounds {
            for (vertex, sum) in (0..).zip(&mut collected) {
                *sum = self.edges(vertex).iter().map(|&end| ranks[end as usize]).sum::<f64>();
            }
            let all: f64 = collected.iter().sum();
            let scale = if all > 0.0 { DAMPING / all } else { 0.0 };
            for (rank, sum) in ranks.iter_mut().zip(&collected) {
                *rank = (1.0 - DAMPING) / count as f64 + scale * sum;
            }
        }
        ranks
    }
}

/// The number that times the odd `factor` is 1, in 32 bits (Newton's method; each step doubles the bits that are right).
const fn inverse_of(factor: u32) -> u32 {
    let mut inverse = factor;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(factor.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
const fn halves(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of edges: not negative, far below 2^53"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vertices_are_renumbered_one_to_one_and_back() {
        assert_eq!(inverse_of(0x9E37_79B1).wrapping_mul(0x9E37_79B1), 1);
        let mut seen: Vec<u32> = (0..1 << 10).map(|old| renumbered(old, 10)).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1 << 10));
    }

    #[test]
    fn a_graph_has_about_its_edges_and_the_busiest_vertex_has_most() {
        let graph = Graph::generate(12);
        let edges = graph.ends.len() as f64 / f64::from(1 << 12);
        assert!((edges - DEGREE as f64).abs() < 0.2, "{edges}");
        let most = (0..1 << 12).map(|vertex| graph.edges(vertex).len()).max();
        assert_eq!(most, Some(graph.edges(busiest(12)).len()));
        // (3/4)^12 of 32,768 edges = 1037.97.
        assert!((1037..=1039).contains(&graph.edges(busiest(12)).len()));
        assert!(graph.ends.iter().all(|end| *end < 1 << 12));
    }

    #[test]
    fn depths_are_those_of_a_search_by_hand_and_ranks_sum_to_one() {
        // 0 → 1, 0 → 2, 1 → 3, 2 → 3, 4 → 0
        let graph = Graph { begins: vec![0, 2, 3, 4, 4, 5], ends: vec![1, 2, 3, 3, 0] };
        assert_eq!(graph.depths_from(0), [0, 1, 1, 2, UNSEEN]);
        let sum: f64 = graph.ranks(5).iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        assert!((Graph::generate(8).ranks(2).iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
