//! Owners, modes and callers, as programs see them.

use crate::plain::Plain;
use crate::process::credentials::Credentials;
use crate::process::credentials::capabilities::cap;
use crate::{Ctx, Machine};
use quire_ipc::owner::{Change, MODE};
use quire_ipc::{Caller, Open, Owner};

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

// SAFETY: its padding is made of fields.
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

    /// The change that IPC_SET asks for.
    pub fn change(&self) -> Change {
        Change { user: self.uid, group: self.gid, mode: self.mode }
    }
}

/// How a `*get` call with `flags` opens an object.
pub(super) fn open(flags: i32) -> Open {
    const CREATE: i32 = 0o1000;
    const EXCLUSIVE: i32 = 0o2000;
    Open { create: flags & CREATE != 0, exclusive: flags & EXCLUSIVE != 0, mode: flags as u32 & MODE }
}

impl<M: Machine> Ctx<'_, M> {
    /// As [`as_caller`](Self::as_caller), with the ids and privileges for files.
    pub(super) fn as_file_caller<R>(&self, with: impl FnOnce(&Caller<'_>) -> R) -> R {
        let own = self.credentials();
        let (user, group) = (own.file_user, own.file_group);
        let ignores_modes = own.may(cap::DAC_OVERRIDE);
        self.as_caller(|caller| with(&Caller { user, group, ignores_modes, ..*caller }))
    }

    /// Calls `with` with the calling thread as a caller of `quire_ipc`.
    pub(super) fn as_caller<R>(&self, with: impl FnOnce(&Caller<'_>) -> R) -> R {
        let own: &Credentials = self.credentials();
        let in_group = |group: u32| {
            own.file_group == group || own.groups.as_ref().is_some_and(|groups| groups.binary_search(&group).is_ok())
        };
        with(&Caller {
            user: own.effective_user,
            group: own.effective_group,
            in_group: &in_group,
            ignores_modes: own.may(cap::IPC_OWNER),
            administers: own.may(cap::SYS_ADMIN),
            locks: own.may(cap::IPC_LOCK),
            exceeds: own.may(cap::SYS_RESOURCE),
        })
    }
}
