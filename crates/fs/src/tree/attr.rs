//! The identity, the kind and the attributes of a file.

/// A point in time: seconds and nanoseconds since 1970, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanos: u32,
}

/// The unique id of a file: the file system's device number and the inode's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ident {
    /// Device number of the file system.
    pub device: u64,
    /// Number of the inode in it.
    pub number: u64,
}

/// The number of a device driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceNumber {
    /// The kind of device.
    pub major: u32,
    /// The device of that kind.
    pub minor: u32,
}

impl DeviceNumber {
    /// The number under which a driver of all devices of one kind is registered.
    pub const fn each(major: u32) -> Self {
        DeviceNumber { major, minor: u32::MAX }
    }
}

/// The kind of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    CharDevice,
    BlockDevice,
    Socket,
    /// A nameless stream: an event counter or the like.
    Anonymous,
}

impl FileKind {
    /// Whether writes to a file of this kind change the file system.
    pub(crate) fn takes_changes(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
    }
}

/// Attributes that each caller may read and the owner may change.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Permission bits, with set-id and sticky bits (0o7777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Whether the inode was made without a name and may still be given its first one.
    pub linkable: bool,
    /// Time of the last read. Written only at creation and by explicit changes: reads do not write it (as with
    /// `noatime`).
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the attributes.
    pub changed: Timestamp,
    /// Creation.
    pub born: Timestamp,
}

/// The bit of [`Attr::words`] for `linkable`, between the mode and the number of names.
const LINKABLE: u64 = 1 << 16;

impl Attr {
    pub(super) fn words(&self) -> [u64; 8] {
        let times = [self.accessed, self.modified, self.changed, self.born];
        let [a, m, c, b] = times.map(|t| t.seconds as u64);
        let [an, mn, cn, bn] = times.map(|t| u64::from(t.nanos));
        let (mode, links) = (u64::from(self.mode), u64::from(self.links));
        let linkable = u64::from(self.linkable) * LINKABLE;
        let owners = u64::from(self.uid) | u64::from(self.gid) << 32;
        [mode | linkable | links << 32, owners, a, m, c, b, an | mn << 32, cn | bn << 32]
    }

    /// Adds a store through a mapping at time `at`. If the contents were changed after `at`, that change has set both
    /// times, and this call changes nothing.
    pub(super) fn add_store(&mut self, at: Timestamp) {
        // An explicit time of modification may lie in the future. A store later than `changed` came after that time was
        // set, and replaces it.
        if at > self.modified || at > self.changed {
            self.modified = at;
            self.changed = self.changed.max(at);
        }
    }

    pub(super) fn of_words([first, owners, a, m, c, b, an_mn, cn_bn]: [u64; 8]) -> Self {
        let time = |seconds: u64, nanos: u64| Timestamp { seconds: seconds as i64, nanos: nanos as u32 };
        Attr {
            mode: first as u16,
            uid: owners as u32,
            gid: (owners >> 32) as u32,
            links: (first >> 32) as u32,
            linkable: first & LINKABLE != 0,
            accessed: time(a, an_mn),
            modified: time(m, an_mn >> 32),
            changed: time(c, cn_bn),
            born: time(b, cn_bn >> 32),
        }
    }
}

/// The attributes that decide permissions on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// The results of `stat`.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Identity.
    pub ident: Ident,
    /// Kind.
    pub kind: FileKind,
    /// Attributes.
    pub attr: Attr,
    /// Size in bytes.
    pub size: u64,
    /// The number of bytes that the file occupies.
    pub allocated: u64,
    /// The number of a device; zeroes for other files.
    pub device: DeviceNumber,
}

/// The attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewAttr {
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The bits of a mode that allow execution.
pub(crate) const EXECUTE: u16 = 0o111;

/// `mode` without the bits that make a program run as its owner or its group.
pub(crate) fn without_set_ids(mode: u16) -> u16 {
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}
