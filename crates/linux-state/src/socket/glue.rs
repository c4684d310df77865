//! Implements the host of `quire_net` for this kernel: files, credentials, random numbers.

use crate::file::host::{Dentry, File};
use crate::process::credentials::Credentials as Own;
use crate::socket::host::{InFlightCharge, SocketHost};
use crate::{Linux, Machine};
use quire_fs::{Host as _, Stream};
use quire_heap::Arc;
use quire_net::{Credentials, Host};

/// The credentials in a message from process `pid`.
pub fn real_credentials(pid: crate::Pid, own: &Own) -> Credentials {
    Credentials { pid, uid: own.real_user, gid: own.real_group }
}

impl<M: Machine> Host for SocketHost<M> {
    type File = Arc<File<M>>;
    type Node = Arc<Dentry<M>>;
    type Charge = InFlightCharge;

    fn stream_of(file: &Self::File) -> Option<&dyn Stream> {
        file.stream().map(|stream| &**stream)
    }

    fn references(file: &Self::File) -> usize {
        Arc::strong_count(file)
    }

    fn random(&self) -> u32 {
        let mut bytes = [0; 4];
        self.0.random(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn caller(&self) -> Credentials {
        let Some(linux): Option<&Linux<M>> = self.0.linux() else { return Credentials { pid: 0, uid: 0, gid: 0 } };
        let thread = linux.current();
        // SAFETY: the calling thread reads its own field.
        real_credentials(thread.process.pid, unsafe { thread.credentials.get() })
    }
}
