//! JSON fields under a new name and, for one release, the old one: `#[serde(flatten, with =
//! "units::renamed::backend")]`. Pure.

macro_rules! renamed {
    ($($new:ident, $old:literal;)*) => {$(
        #[doc = concat!("`", stringify!($new), "`, which 0.1.0 called `", $old, "`.")]
        pub mod $new {
            use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

            #[derive(Deserialize)]
            struct Renamed<T> {
                $new: T,
            }

            /// Writes both names.
            ///
            /// # Errors
            /// Errors of the serializer.
            pub fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
                let mut fields = to.serialize_map(Some(2))?;
                fields.serialize_entry(stringify!($new), value)?;
                fields.serialize_entry($old, value)?;
                fields.end()
            }

            /// Reads the new name.
            ///
            /// # Errors
            /// Errors of the deserializer.
            pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
                Renamed::deserialize(from).map(|field| field.$new)
            }
        }
    )*};
}

renamed! {
    backend, "rung";
    domain, "room";
    faults_in_flight, "faults_arriving";
    faults_in_victim_queue, "faults_staged";
    headroom_bytes, "left_bytes";
    level, "dial";
    levels, "dials";
    low_watermark_bytes, "margin_bytes";
    mlocked_bytes, "pinned_bytes";
    mlocked_bytes_max, "pinned_bytes_max";
    mlocks, "pins";
    transfer_bytes_median, "unit_bytes_median";
    victim_queue_hit_rate, "staging_hit_rate";
}
