//! Lines of `schemata`.

/// A line of `schemata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schema {
    /// Bandwidth.
    Mb,
    /// Ways for code and data.
    L3,
    /// Ways for data, with CDP.
    L3Data,
    /// Ways for code, with CDP.
    L3Code,
}

impl Schema {
    /// Name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Schema::Mb => "MB",
            Schema::L3 => "L3",
            Schema::L3Data => "L3DATA",
            Schema::L3Code => "L3CODE",
        }
    }

    /// Whether the line holds ways.
    pub fn is_cache(self) -> bool {
        self != Schema::Mb
    }

    /// The schema, and the other of code and data.
    pub fn with_peer(self) -> impl Iterator<Item = Schema> {
        let peer = match self {
            Schema::L3Data => Some(Schema::L3Code),
            Schema::L3Code => Some(Schema::L3Data),
            Schema::Mb | Schema::L3 => None,
        };
        std::iter::once(self).chain(peer)
    }
}
