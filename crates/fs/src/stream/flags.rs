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
        /// Calls rather fail than wait.
        const NONBLOCK = 1 << 3;
        /// Make it where it is missing.
        const CREATE = 1 << 4;
        /// With `CREATE`: it must be missing.
        const EXCLUSIVE = 1 << 5;
        /// Empty it.
        const TRUNCATE = 1 << 6;
        /// It must be a directory.
        const DIRECTORY = 1 << 7;
        /// The last component must not be a link.
        const NOFOLLOW = 1 << 8;
        /// Only to name it.
        const PATH = 1 << 9;
        /// A terminal does not become the caller's.
        const NO_TERMINAL = 1 << 10;
        /// A file without a name, on the file system of the directory that is named.
        const NAMELESS = 1 << 11;
        /// Remembered for the caller, without effect: everything is as synchronous as memory.
        const SYNC = 1 << 12;
        /// Each write to a pipe makes packets. Other files keep the flag without effect.
        const DIRECT = 1 << 13;
        /// Remembered for the caller, without effect: times of access are not kept.
        const NOATIME = 1 << 14;
        /// Remembered for the caller, without effect.
        const ASYNC = 1 << 15;
        /// Remembered for the caller, without effect: offsets may be large (they always may).
        const LARGE = 1 << 16;
    }
}

impl OpenFlags {
    /// What can be changed while a file is open.
    pub const CHANGEABLE: OpenFlags =
        Self::APPEND.union(Self::NONBLOCK).union(Self::DIRECT).union(Self::NOATIME).union(Self::ASYNC);
    /// What concerns only the opening.
    pub(crate) const OPENING: OpenFlags =
        Self::CREATE.union(Self::EXCLUSIVE).union(Self::TRUNCATE).union(Self::NO_TERMINAL);
}
