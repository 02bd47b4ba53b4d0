//! Heat of a mapping on one line: cells, each for an equal part of the mapping.

use units::Pages;
use units::cast::index;

use super::{MappingHeat, Run};

const CELLS: usize = 96;
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    present: u64,
    touched: u64,
}

/// The strip from the first to the last resident page.
pub fn strip(heat: &MappingHeat) -> String {
    let (Some(first), Some(last)) = (heat.runs.first(), heat.runs.last()) else { return String::new() };
    let start = first.start.0;
    let pages = (end(last) - start) / 4096;
    let cells = index(pages).min(CELLS);
    let per_cell = pages.div_ceil(cells as u64).max(1);
    let mut line = vec![Cell::default(); cells];
    for run in &heat.runs {
        add(&mut line, run, start, per_cell);
    }
    line.into_iter().map(Cell::draw).collect()
}

fn end(run: &Run) -> u64 {
    run.start.0 + Pages(run.pages).bytes().0
}

fn add(line: &mut [Cell], run: &Run, start: u64, per_cell: u64) {
    let (mut page, past) = ((run.start.0 - start) / 4096, (end(run) - start) / 4096);
    while page < past {
        let cell = page / per_cell;
        let upto = past.min((cell + 1) * per_cell);
        if let Some(cell) = line.get_mut(index(cell)) {
            cell.present += upto - page;
            cell.touched += if run.accessed_reads > 0 { upto - page } else { 0 };
        }
        page = upto;
    }
}

impl Cell {
    fn draw(self) -> char {
        match self {
            Cell { present: 0, .. } => ' ',
            Cell { touched: 0, .. } => '·',
            // One touched page of many gives the lowest block, all of them the full block.
            Cell { present, touched } => {
                let eighth = index((touched * 8).div_ceil(present));
                BLOCKS[eighth.clamp(1, 8) - 1]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use units::{Address, Rate};

    use super::*;

    fn heat(runs: &[(u64, u64, u32)]) -> MappingHeat {
        let run = |(page, pages, accessed_reads): &(u64, u64, u32)| Run {
            start: Address(0x10_0000 + page * 4096),
            pages: *pages,
            huge: false,
            accessed_reads: *accessed_reads,
            rate_per_s: Rate::ZERO,
        };
        MappingHeat {
            start: Address(0),
            end: Address(1 << 40),
            perms: String::new(),
            path: linux::Untrusted::default(),
            runs: runs.iter().map(run).collect(),
        }
    }

    #[test]
    fn a_small_mapping_has_a_cell_for_each_page() {
        assert_eq!(strip(&heat(&[(0, 2, 0), (2, 1, 5), (4, 1, 1)])), "··█ █");
    }

    #[test]
    fn a_large_one_shows_the_touched_part_of_each_cell() {
        // 960 pages, ten a cell: the first 100 hot, then one in ten, then idle.
        let mut runs = vec![(0, 100, 1)];
        (100..200).for_each(|page| runs.push((page, 1, u32::from(page % 10 == 0))));
        runs.push((200, 760, 0));
        let line = strip(&heat(&runs));
        assert_eq!(line, format!("{}{}{}", "█".repeat(10), "▁".repeat(10), "·".repeat(76)));
    }

    #[test]
    fn nothing_draws_nothing() {
        assert_eq!(strip(&heat(&[])), "");
    }
}
