//! One program of the field: its packages, its input, its command, and the comparison of its output.

/// A way to run a program under masu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// `masu run`: huge pages at the first touch.
    Run,
    /// `masu run --huge hot`: promotion from outside.
    Hot,
    /// `masu run --local SIZE`: far memory, in a file.
    Local,
    /// `masu aging --cache 0`: drop-behind for the command's streams.
    Streams,
    /// `masu attach`, while the program runs.
    Attach,
}

impl Feature {
    /// All, in the order of the table's columns.
    pub const ALL: [Feature; 5] = [Feature::Run, Feature::Hot, Feature::Local, Feature::Streams, Feature::Attach];

    /// Heading of its column.
    pub fn heading(self) -> &'static str {
        match self {
            Feature::Run => "run",
            Feature::Hot => "run --huge hot",
            Feature::Local => "run --local",
            Feature::Streams => "aging --cache 0",
            Feature::Attach => "attach",
        }
    }
}

/// A program, run in an empty folder. Shell texts know `$IN`, a folder for the input, and `$PORT`, a free TCP port.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name in the table.
    pub name: &'static str,
    /// Programs or files that must exist.
    pub needs: &'static [&'static str],
    /// Debian packages that provide them; `pip:NAME` for a package of Python.
    pub packages: &'static str,
    /// Shell text that prints the version in its first line.
    pub version: &'static str,
    /// Shell text that makes the input in `$IN`, once, without masu.
    pub prepare: &'static str,
    /// Program and arguments. `$IN` and `$PORT` are replaced in each.
    pub command: &'static [&'static str],
    /// A server's client: shell text, whose output is compared. The server then gets SIGTERM.
    pub client: Option<&'static str>,
    /// Shell text run after the end, without masu: its output is compared, too.
    pub then: &'static str,
    /// Argument of `--local`: about half of the need.
    pub local: &'static str,
    /// Features with another result by design, and the reason. With `refused`, masu itself must refuse the start (status 125).
    pub apart: &'static [(Feature, Apart)],
}

/// A feature that does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// masu refuses the start; its reason contains this.
    Refused(&'static str),
    /// Not run; the reason.
    LeftOut(&'static str),
}

/// An entry to be completed: ends by itself, no input, standard output compared.
pub const BATCH: Entry = Entry {
    name: "",
    needs: &[],
    packages: "",
    version: "",
    prepare: "",
    command: &[],
    client: None,
    then: "",
    local: "32MiB",
    apart: &[],
};

impl Entry {
    /// Reason why `feature` does not apply to it.
    pub fn apart(&self, feature: Feature) -> Option<Apart> {
        self.apart.iter().find(|(named, _)| *named == feature).map(|(_, apart)| *apart)
    }
}
