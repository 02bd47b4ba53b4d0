//! The directory `info`: properties of the machine, and the result of the last command. Pure.
//!
//! Truth: Documentation/filesystems/resctrl.rst, "Info directory"; `res_common_files` in fs/resctrl/rdtgroup.c.

use rustix::io::Errno;
use units::Bytes;

use crate::machine::Machine;
use crate::node::{Folder, InfoFile};
use crate::schema::Schema;
use crate::text::unsigned_32;

use InfoFile::{
    BandwidthGran, BitUsage, CbmMask, DelayLinear, IoAlloc, IoAllocCbm, MaxThresholdOccupancy, MinBandwidth,
    MinCbmBits, MonFeatures, NumClosids, NumRmids, ShareableBits, SparseMasks, ThreadThrottleMode,
};

impl Machine {
    /// The directories of `info`.
    pub(crate) fn folders(&self) -> Vec<Folder> {
        let lines = self.schemata().into_iter().map(Folder::Schema);
        lines.chain(self.hardware.monitoring.map(|_| Folder::Monitoring)).collect()
    }

    /// Files of such a directory.
    pub(crate) fn info_files(&self, folder: Folder) -> Vec<InfoFile> {
        let of_devices = |file: &InfoFile| matches!(file, IoAlloc | IoAllocCbm);
        match folder {
            Folder::Schema(Schema::Mb) => InfoFile::BANDWIDTH.to_vec(),
            Folder::Schema(_) => {
                let capable = self.hardware.io_alloc_capable;
                InfoFile::CACHE.into_iter().filter(|file| capable || !of_devices(file)).collect()
            }
            Folder::Monitoring => InfoFile::MONITORING.to_vec(),
        }
    }

    /// Content of a file.
    pub(crate) fn show_info(&mut self, folder: Folder, file: InfoFile) -> Result<String, Errno> {
        let hardware = &self.hardware;
        let bandwidth = hardware.bandwidth;
        let number = |number: u32| format!("{number}\n");
        let schema = if let Folder::Schema(schema) = folder { schema } else { Schema::L3 };
        Ok(match file {
            NumClosids => number(hardware.usable_classes()),
            CbmMask => format!("{}\n", hardware.all_ways()),
            MinCbmBits => number(hardware.min_ways.0),
            ShareableBits => format!("{}\n", hardware.shareable),
            SparseMasks => number(u32::from(hardware.sparse_masks)),
            MinBandwidth => number(bandwidth.map_or(0, |bandwidth| bandwidth.min_percent)),
            BandwidthGran => number(bandwidth.map_or(0, |bandwidth| bandwidth.step_percent)),
            DelayLinear => number(1),
            ThreadThrottleMode => "max\n".to_owned(),
            NumRmids => number(hardware.monitoring.map_or(0, |monitoring| monitoring.rmids)),
            MonFeatures => self.events().iter().map(|event| format!("{}\n", event.name())).collect(),
            MaxThresholdOccupancy => format!("{}\n", self.counters.threshold.0),
            BitUsage => self.show_bit_usage(schema),
            IoAlloc => self.show_io_alloc().to_owned(),
            IoAllocCbm => self.show_io_alloc_cbm(schema)?,
        })
    }

    /// Write to one of the few writable files.
    pub(crate) fn write_info(&mut self, folder: Folder, file: InfoFile, text: &str) -> Result<(), Errno> {
        let schema = if let Folder::Schema(schema) = folder { schema } else { Schema::L3 };
        match file {
            IoAlloc => self.write_io_alloc(schema, text),
            IoAllocCbm => self.write_io_alloc_cbm(schema, text),
            MaxThresholdOccupancy => {
                let bytes = u64::from(unsigned_32(text, 0)?);
                if bytes > self.hardware.cache.0 {
                    return Err(Errno::INVAL);
                }
                self.counters.set_threshold(Bytes(bytes));
                Ok(())
            }
            _ => Err(Errno::ACCESS),
        }
    }
}
