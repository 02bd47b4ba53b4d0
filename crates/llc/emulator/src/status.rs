//! `info/last_cmd_status`: result of the last command of any process. Pure.
//!
//! Commands clear it and failures add to it; empty, it reads as `ok`. At most 512 bytes. Truth:
//! Documentation/filesystems/resctrl.rst; `rdt_last_cmd_status_show` in fs/resctrl/rdtgroup.c.

use rustix::io::Errno;

const MOST_BYTES: usize = 512;

/// The text.
#[derive(Clone, Debug, Default)]
pub struct LastCommand(String);

impl LastCommand {
    /// Begins a command.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds to the text; the rest beyond the limit is cut off.
    pub fn say(&mut self, text: &str) {
        let room = MOST_BYTES - 1 - self.0.len();
        let fits = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.0.push_str(&text[..fits]);
    }

    /// Adds the reason and fails.
    ///
    /// # Errors
    /// Always `errno`.
    pub fn refuse<T>(&mut self, errno: Errno, why: &str) -> Result<T, Errno> {
        self.say(why);
        Err(errno)
    }

    /// Content of the file.
    pub fn show(&self) -> String {
        if self.0.is_empty() { "ok\n".to_owned() } else { self.0.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_ok_or_what_was_wrong_up_to_512_bytes() {
        let mut status = LastCommand::default();
        assert_eq!(status.show(), "ok\n");
        assert_eq!(status.refuse::<()>(Errno::INVAL, "Mask out of range\n"), Err(Errno::INVAL));
        assert_eq!(status.show(), "Mask out of range\n");
        status.say(&"ü".repeat(512));
        status.say("more");
        assert!((500..512).contains(&status.show().len()), "{}", status.show().len());
        status.clear();
        assert_eq!(status.show(), "ok\n");
    }
}
