//! File of the status page: `/proc/MASU/fd/N`, which a process of another user or in other namespaces cannot open.

use core::ffi::CStr;

use contract::status_page;

use crate::kernel;

/// Maps the status page; `None` where this process cannot open it.
pub fn map(path: &str) -> Option<usize> {
    with_path(path, |path| kernel::map_file(path, status_page::BYTES))?
}

/// Whether a program that replaces this one can open the status page: it has masu's `/proc`, and masu's user or root's.
/// Capabilities that another user has now (setpriv(1)) end with the exec.
pub fn opens_after_exec(path: &str) -> bool {
    let user = kernel::effective_user();
    with_path(path, |path| user == Some(0) || kernel::owner(path) == user).unwrap_or(false)
}

/// Passes the path of the status page on. In another pid namespace, or after masu has ended, the path may lead
/// elsewhere: only a file with the status page's name will do.
fn with_path<T>(path: &str, go: impl FnOnce(&CStr) -> T) -> Option<T> {
    let mut text = [0u8; 64];
    text.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
    let path = CStr::from_bytes_until_nul(&text).ok()?;
    let mut name = [0u8; 64];
    let found =
        kernel::read_link(path, &mut name)?.strip_prefix(b"/memfd:")?.strip_prefix(status_page::NAME.as_bytes());
    (found? == b" (deleted)").then(|| go(path))
}
