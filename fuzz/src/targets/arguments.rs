//! Command-line values: amounts, fractions, backends, protection levels, process ids. Each is read or refused, and never out of
//! range.

use std::str::FromStr;

use access::Backend;
use aging::levels::Bounds;
use linux::Pid;
use units::{Bytes, Fraction, NonZeroFraction};

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut understood = false;
    if let Ok(amount) = Bytes::from_str(&text) {
        understood = true;
        assert_eq!(Bytes::from_str(&amount.0.to_string()), Ok(amount));
        let _ = (amount.to_string(), amount.pages(), amount.as_gib());
    }
    if let Ok(part) = Fraction::from_str(&text) {
        understood = true;
        assert!((0.0..=1.0).contains(&part.get()));
    }
    if let Ok(part) = NonZeroFraction::from_str(&text) {
        understood = true;
        assert!(part.get() > 0.0 && part.get() <= 1.0);
        assert_eq!(Fraction::from_str(&text).ok(), Some(part.into()));
    }
    if let Ok(backend) = Backend::from_str(&text) {
        understood = true;
        assert_eq!(backend.name(), text);
    }
    if let Ok(bounds) = Bounds::from_str(&text) {
        understood = true;
        assert!(bounds.low <= bounds.high && bounds.high.get() <= 100);
        assert_eq!(Bounds::from_str(&bounds.to_string()), Ok(bounds));
    }
    if let Ok(pid) = Pid::from_str(&text) {
        understood = true;
        assert!(pid.0 > 0);
    }
    understood
}
