//! Owners and modes in the form of programs.

use quire_ipc::owner::{Change, MODE};
use quire_ipc::{Open, Owner};
use quire_linux_state::base::plain::Plain;

/// `struct ipc64_perm`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Permission {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    pub cuid: u32,
    pub cgid: u32,
    pub mode: u32,
    pub sequence: u16,
    pub padding: [u16; 3],
    pub unused: [u64; 2],
}

// SAFETY: all padding is declared as fields, and every bit pattern is a value.
unsafe impl Plain for Permission {}
const _: () = assert!(size_of::<Permission>() == 48);

impl Permission {
    pub fn new(key: i32, sequence: u32, owner: &Owner, flags: u32) -> Self {
        Permission {
            key,
            uid: owner.user,
            gid: owner.group,
            cuid: owner.creator,
            cgid: owner.creator_group,
            mode: owner.mode | flags,
            sequence: sequence as u16,
            padding: [0; 3],
            unused: [0; 2],
        }
    }

    /// The change that IPC_SET requests.
    pub fn change(&self) -> Change {
        Change { user: self.uid, group: self.gid, mode: self.mode }
    }
}

/// Converts the flags of a `*get` call.
pub(super) fn open(flags: i32) -> Open {
    const CREATE: i32 = 0o1000;
    const EXCLUSIVE: i32 = 0o2000;
    Open { create: flags & CREATE != 0, exclusive: flags & EXCLUSIVE != 0, mode: flags as u32 & MODE }
}
