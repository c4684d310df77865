//! The flags with which a file is opened.

bitflags::bitflags! {
    /// The flags with which a file is opened.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// The file is opened for reading.
        const READ = 1;
        /// The file is opened for writing.
        const WRITE = 1 << 1;
        /// Every write goes to the end of the file.
        const APPEND = 1 << 2;
        /// Calls fail instead of waiting.
        const NONBLOCK = 1 << 3;
        /// The file is made if it is missing.
        const CREATE = 1 << 4;
        /// With `CREATE`: the open fails if the file exists.
        const EXCLUSIVE = 1 << 5;
        /// The file is emptied.
        const TRUNCATE = 1 << 6;
        /// The file must be a directory.
        const DIRECTORY = 1 << 7;
        /// The last component must not be a link.
        const NOFOLLOW = 1 << 8;
        /// The file is opened only as a name.
        const PATH = 1 << 9;
        /// An opened terminal does not become the caller's controlling terminal.
        const NO_TERMINAL = 1 << 10;
        /// A new file without a name is made, on the file system of the given directory.
        const NAMELESS = 1 << 11;
        /// Stored for the caller, without effect: files in memory are always synchronous.
        const SYNC = 1 << 12;
        /// Each write to a pipe makes packets. Other files keep the flag without effect.
        const DIRECT = 1 << 13;
        /// Stored for the caller, without effect: access times are not kept.
        const NOATIME = 1 << 14;
        /// Stored for the caller, without effect.
        const ASYNC = 1 << 15;
        /// Stored for the caller, without effect: offsets may always be large.
        const LARGE = 1 << 16;
        /// The open has made the file.
        const CREATED = 1 << 17;
        /// Stored for the caller, without effect, beside `SYNC`: writes of attributes are synchronous too.
        const SYNC_ALL = 1 << 18;
    }
}

impl OpenFlags {
    /// The flags that can be changed while a file is open.
    pub const CHANGEABLE: OpenFlags =
        Self::APPEND.union(Self::NONBLOCK).union(Self::DIRECT).union(Self::NOATIME).union(Self::ASYNC);
    /// The flags that concern only the open itself.
    pub(crate) const OPENING: OpenFlags =
        Self::CREATE.union(Self::EXCLUSIVE).union(Self::TRUNCATE).union(Self::NO_TERMINAL);
}
