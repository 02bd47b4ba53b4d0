//! The kernel's resctrl file system without the hardware: its rules, errno and status text included.
