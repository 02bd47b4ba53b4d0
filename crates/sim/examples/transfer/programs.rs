//! Synthetic programs, as sequences of touched pages. Arrays are scaled down with their proportions kept.

use units::spread::{spread, within};

/// Next step of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Touches a page, after some computation.
    Touch {
        site: u32,
        page: u32,
        write: bool,
        ns: u32,
    },
    /// Section that a programmer would mark.
    Begin(u32),
    End(u32),
}

type Sink<'a> = &'a mut dyn FnMut(Step);

/// A program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) pages: u32,
    pub(super) steps: Box<dyn Fn(Sink<'_>)>,
}

pub(super) fn all() -> Vec<Program> {
    vec![
        adi("ADI, a site per array", true),
        adi("ADI, one site a sweep", false),
        himeno("Himeno, a site per load", true),
        himeno("Himeno, one site", false),
        fft(),
        gups(),
        merge_sort(),
        sparse(),
        chase(),
    ]
}

/// Programs with `part` in their name; case is ignored.
pub(super) fn named(part: &str) -> Vec<Program> {
    let part = part.to_lowercase();
    all().into_iter().filter(|program| program.name.to_lowercase().contains(&part)).collect()
}

/// Sequence of pseudo-random numbers: 1, 2, 3, …, each spread. The recorded results depend on it.
pub(super) struct Sequence(pub(super) u64);

impl Sequence {
    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0 += 1;
        within(spread(self.0), end as usize) as u32
    }
}

/// Consecutive arrays, as in `.bss`: byte address to page.
struct Array {
    first_byte: u64,
}

impl Array {
    fn page(&self, byte: u64) -> u32 {
        ((self.first_byte + byte) / 4096) as u32
    }
}

fn arrays(count: usize, bytes: u64) -> (Vec<Array>, u32) {
    let arrays = (0..count as u64).map(|n| Array { first_byte: n * bytes }).collect();
    (arrays, (count as u64 * bytes).div_ceil(4096) as u32)
}

fn fill(pages: u32, site: u32, sink: Sink<'_>) {
    for page in 0..pages {
        sink(Step::Touch { site, page, write: true, ns: 500 });
    }
}

/// Alternating directions over a cube: four arrays of 25 doubles a cell (5x5 blocks), lines along x, y, z, there and
/// back.
fn adi(name: &'static str, site_per_array: bool) -> Program {
    const N: u64 = 36;
    const CELL: u64 = 200;
    let (_, pages) = arrays(4, N * N * N * CELL);
    let steps = move |sink: Sink<'_>| {
        let (arrays, pages) = arrays(4, N * N * N * CELL);
        fill(pages, 1, sink);
        for _ in 0..4 {
            for sweep in 0..3u32 {
                sink(Step::Begin(sweep));
                for a in 0..N {
                    for b in 0..N {
                        for back in [false, true] {
                            for c in 0..N {
                                let c = if back { N - 1 - c } else { c };
                                let (x, y, z) = [(c, b, a), (b, c, a), (b, a, c)][sweep as usize];
                                let byte = ((z * N + y) * N + x) * CELL;
                                for (n, array) in (0u32..).zip(&arrays) {
                                    let which = if site_per_array { n } else { 0 };
                                    let site = 10 + (sweep * 2 + u32::from(back)) * 4 + which;
                                    let write = n < 2;
                                    sink(Step::Touch { site, page: array.page(byte), write, ns: 30 });
                                }
                            }
                        }
                    }
                }
                sink(Step::End(sweep));
            }
        }
    };
    Program { name, pages, steps: Box::new(steps) }
}

/// The 19-point Jacobi: a (4), b (3), c (3), p, bnd, wrk1, wrk2 of 64 x 64 x 128 floats.
fn himeno(name: &'static str, site_per_load: bool) -> Program {
    const I: u64 = 64;
    const J: u64 = 64;
    const ROW: u64 = 128 * 4;
    let (_, pages) = arrays(14, I * J * ROW);
    let steps = move |sink: Sink<'_>| {
        let (arrays, pages) = arrays(14, I * J * ROW);
        fill(pages, 1, sink);
        for _ in 0..8 {
            sink(Step::Begin(0));
            for i in 1..I - 1 {
                for j in 1..J - 1 {
                    let row = (i * J + j) * ROW;
                    let mut load = 0;
                    let mut touch = |page: u32, write: bool, sink: Sink<'_>| {
                        load += 1;
                        let site = if site_per_load { 100 + load } else { 100 };
                        sink(Step::Touch { site, page, write, ns: 50 });
                    };
                    for array in &arrays[..10] {
                        touch(array.page(row), false, sink);
                    }
                    for plane in [i + 1, i, i - 1] {
                        for line in [j + 1, j, j - 1] {
                            touch(arrays[10].page((plane * J + line) * ROW), false, sink);
                        }
                    }
                    touch(arrays[11].page(row), false, sink);
                    touch(arrays[12].page(row), false, sink);
                    touch(arrays[13].page(row), true, sink);
                }
            }
            sink(Step::End(0));
            sink(Step::Begin(1));
            for row in J..(I - 1) * J {
                sink(Step::Touch { site: 200, page: arrays[13].page(row * ROW), write: false, ns: 50 });
                sink(Step::Touch { site: 201, page: arrays[10].page(row * ROW), write: true, ns: 50 });
            }
            sink(Step::End(1));
        }
    };
    Program { name, pages, steps: Box::new(steps) }
}

/// A 3-D FFT of 128 x 64 x 64 complex numbers: lines gathered in blocks of 16, then a transposed copy.
fn fft() -> Program {
    const X: u64 = 128 * 16;
    const Y: u64 = 64;
    const Z: u64 = 64;
    let (_, pages) = arrays(2, X * Y * Z);
    let steps = move |sink: Sink<'_>| {
        let (arrays, pages) = arrays(2, X * Y * Z);
        fill(pages, 1, sink);
        for _ in 0..4 {
            for pass in 0..3u32 {
                sink(Step::Begin(pass));
                let (outer, inner) = if pass == 2 { (Y, Z) } else { (Z, Y) };
                for a in 0..outer {
                    let blocks = if pass == 0 { 1 } else { X / 256 };
                    for block in 0..blocks {
                        for store in [false, true] {
                            for c in 0..inner {
                                let (y, z) = if pass == 2 { (a, c) } else { (c, a) };
                                let byte = (z * Y + y) * X + block * 256;
                                let site = 10 + pass * 2 + u32::from(store);
                                let ns = if pass == 0 { 800 } else { 100 };
                                sink(Step::Touch { site, page: arrays[0].page(byte), write: store, ns });
                            }
                        }
                    }
                }
                sink(Step::End(pass));
            }
            sink(Step::Begin(3));
            for y in 0..Y {
                for z in 0..Z {
                    for block in 0..X / 512 {
                        let from = (z * Y + y) * X + block * 512;
                        let to = (block * Y * Z + y * Z + z) * 512;
                        sink(Step::Touch { site: 20, page: arrays[0].page(from), write: false, ns: 50 });
                        sink(Step::Touch { site: 21, page: arrays[1].page(to), write: true, ns: 50 });
                    }
                }
            }
            sink(Step::End(3));
        }
    };
    Program { name: "FFT 3-D", pages, steps: Box::new(steps) }
}

/// Random updates.
fn gups() -> Program {
    const PAGES: u32 = 8192;
    let steps = |sink: Sink<'_>| {
        fill(PAGES, 1, sink);
        let mut random = Sequence(7);
        sink(Step::Begin(0));
        for n in 0..200_000 {
            if n % 20_000 == 0 && n > 0 {
                sink(Step::End(0));
                sink(Step::Begin(0));
            }
            sink(Step::Touch { site: 10, page: random.below(PAGES), write: true, ns: 100 });
        }
        sink(Step::End(0));
    };
    Program { name: "GUPS", pages: PAGES, steps: Box::new(steps) }
}

/// Merges runs from one half to the other: two streams in, one out, alternating with the keys.
fn merge_sort() -> Program {
    const HALF: u32 = 4096;
    const SLICES: u32 = 8;
    let steps = |sink: Sink<'_>| {
        fill(HALF * 2, 1, sink);
        let mut random = Sequence(9);
        let (mut from, mut to) = (0, HALF);
        let mut run = 128;
        sink(Step::Begin(0));
        while run < HALF {
            for first in (0..HALF).step_by(2 * run as usize) {
                let (mut left, mut right) = (0, 0);
                for out in 0..2 * run * SLICES {
                    let take_left = right == run * SLICES || (left < run * SLICES && random.below(2) == 0);
                    let (site, read) = if take_left {
                        left += 1;
                        (10, first + (left - 1) / SLICES)
                    } else {
                        right += 1;
                        (11, first + run + (right - 1) / SLICES)
                    };
                    sink(Step::Touch { site, page: from + read, write: false, ns: 150 });
                    sink(Step::Touch { site: 12, page: to + first + out / SLICES, write: true, ns: 150 });
                }
            }
            std::mem::swap(&mut from, &mut to);
            run *= 2;
            sink(Step::End(0));
            sink(Step::Begin(0));
        }
        sink(Step::End(0));
    };
    Program { name: "merge sort", pages: HALF * 2, steps: Box::new(steps) }
}

/// Sparse matrix times vector: values and columns in order, the vector at random, the result in order.
fn sparse() -> Program {
    const ROWS: u64 = 65_536;
    const VALUES: u64 = ROWS * 16 * 8;
    const COLUMNS: u64 = ROWS * 16 * 4;
    const VECTOR: u64 = ROWS * 8;
    let pages = ((VALUES + COLUMNS + 2 * VECTOR) / 4096) as u32;
    let steps = move |sink: Sink<'_>| {
        fill(pages, 1, sink);
        let page = |byte: u64| (byte / 4096) as u32;
        let mut random = Sequence(11);
        for _ in 0..5 {
            sink(Step::Begin(0));
            for row in 0..ROWS {
                sink(Step::Touch { site: 10, page: page(row * 128), write: false, ns: 15 });
                sink(Step::Touch { site: 11, page: page(VALUES + row * 64), write: false, ns: 15 });
                for n in 0..4 {
                    let column = if n == 0 { row } else { u64::from(random.below(ROWS as u32)) };
                    let byte = VALUES + COLUMNS + column * 8;
                    sink(Step::Touch { site: 12, page: page(byte), write: false, ns: 15 });
                }
                let byte = VALUES + COLUMNS + VECTOR + row * 8;
                sink(Step::Touch { site: 13, page: page(byte), write: true, ns: 15 });
            }
            sink(Step::End(0));
        }
    };
    Program { name: "sparse matrix", pages, steps: Box::new(steps) }
}

/// Pointer chasing: nine of ten steps within a scattered tenth of the pages.
fn chase() -> Program {
    const PAGES: u32 = 8192;
    let steps = |sink: Sink<'_>| {
        fill(PAGES, 1, sink);
        let mut random = Sequence(13);
        sink(Step::Begin(0));
        for n in 0..400_000 {
            if n % 40_000 == 0 && n > 0 {
                sink(Step::End(0));
                sink(Step::Begin(0));
            }
            let page = if random.below(10) > 0 { random.below(PAGES / 10) * 10 + 3 } else { random.below(PAGES) };
            sink(Step::Touch { site: 10, page, write: false, ns: 100 });
        }
        sink(Step::End(0));
    };
    Program { name: "pointer chase", pages: PAGES, steps: Box::new(steps) }
}
