//! JSON fields under a new name and, for one release, the old one: `#[serde(flatten, with =
//! "units::renamed::backend")]`. Pure.

/// `backend`, which 0.1.0 called `rung`.
pub mod backend {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

    #[derive(Deserialize)]
    struct Renamed<T> {
        backend: T,
    }

    /// Writes both names.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(Some(2))?;
        fields.serialize_entry("backend", value)?;
        fields.serialize_entry("rung", value)?;
        fields.end()
    }

    /// Reads the new name.
    ///
    /// # Errors
    /// Errors of the deserializer.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        Renamed::deserialize(from).map(|field| field.backend)
    }
}
