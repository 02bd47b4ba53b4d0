//! Arbitrary content of the memory that the pager learns in and the program can write to.

use farmem_engine::units::Learned;

use crate::input::Input;

/// Fills all of `learned`: with one byte, or with noise that is zero in part.
pub fn scribble(learned: &mut Learned, input: &mut Input<'_>) {
    let (way, seed, zeros) = (input.byte(), input.int(), input.byte());
    let bytes = size_of::<Learned>();
    // SAFETY: `Learned` consists of integers and arrays of integers alone (all of it is `repr(C)` and shared with
    // another process), so any bytes are a value of it; the pointer is that of a whole `Learned`, and bytes have no
    // alignment.
    let place = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(learned).cast::<u8>(), bytes) };
    match way % 4 {
        0 => place.fill(0),
        1 => place.fill((seed & 0xff) as u8),
        _ => {
            let mut noise = u64::from(seed) | 1 << 40;
            for chunk in place.chunks_mut(8) {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                let word = if (noise >> 20) as u8 <= zeros { 0 } else { noise };
                // Small numbers are more like real content.
                let word = if way % 4 == 3 { word & 0x0007_0007_0007_0007 } else { word };
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
            }
        }
    }
    for _ in 0..input.byte() % 8 {
        let (at, value) = (input.int() as usize % (bytes / 4), input.int());
        place[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
        // The data not kept by site is small and lies at the end.
        let behind = bytes - 1 - (input.half() as usize % bytes);
        place[behind] = input.byte();
    }
}
