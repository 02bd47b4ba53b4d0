//! JSON fields under a new name and, for one release, the old one: `#[serde(flatten, serialize_with =
//! "units::renamed::backend")]`. Pure.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// `backend`, which 0.1.0 called `rung`.
///
/// # Errors
/// Errors of the serializer.
pub fn backend<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_map(Some(2))?;
    fields.serialize_entry("backend", value)?;
    fields.serialize_entry("rung", value)?;
    fields.end()
}
