//! How a file is opened.

bitflags::bitflags! {
    /// How a file is opened.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 1 << 1;
        /// Every write goes to the end.
        const APPEND = 1 << 2;
        /// Calls fail instead of waiting.
        const NONBLOCK = 1 << 3;
        /// Make it if it is missing.
        const CREATE = 1 << 4;
        /// With `CREATE`: it must be missing.
        const EXCLUSIVE = 1 << 5;
        /// Empty it.
        const TRUNCATE = 1 << 6;
        /// The file must be a directory.
        const DIRECTORY = 1 << 7;
        /// The last component must not be a link.
        const NOFOLLOW = 1 << 8;
        /// Open it only as a name.
        const PATH = 1 << 9;
        /// A terminal does not become the caller's.
        const NO_TERMINAL = 1 << 10;
        /// A file without a name, on the file system of the given directory.
        const NAMELESS = 1 << 11;
        /// Stored for the caller, without effect: files in memory are always synchronous.
        const SYNC = 1 << 12;
        /// Each write to a pipe makes packets. Other files keep the flag without effect.
        const DIRECT = 1 << 13;
        /// Stored for the caller, without effect: access times are not kept.
        const NOATIME = 1 << 14;
        /// Remembered for the caller, without effect.
        const ASYNC = 1 << 15;
        /// Stored for the caller, without effect: offsets may always be large.
        const LARGE = 1 << 16;
        /// The opening made the file.
        const CREATED = 1 << 17;
    }
}

impl OpenFlags {
    /// The flags that can be changed while a file is open.
    pub const CHANGEABLE: OpenFlags =
        Self::APPEND.union(Self::NONBLOCK).union(Self::DIRECT).union(Self::NOATIME).union(Self::ASYNC);
    /// The flags that concern only the opening.
    pub(crate) const OPENING: OpenFlags =
        Self::CREATE.union(Self::EXCLUSIVE).union(Self::TRUNCATE).union(Self::NO_TERMINAL);
}
