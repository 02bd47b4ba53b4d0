//! Numbers from the fuzzer's bytes. After the last byte they are zeros.

#![allow(dead_code, reason = "each target uses a part of it")]

/// The remaining bytes.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        let mut bytes = [0; N];
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn int(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
