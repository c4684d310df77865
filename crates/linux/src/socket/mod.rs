//! Sockets: the calls, addresses, options and messages of Linux over those of `quire_net`.
//!
//! [`calls`] makes, names and connects sockets. [`transfer`] sends and receives. [`options`] has `getsockopt` and
//! `setsockopt`. [`netlink`] and [`loopback`] answer requests about the interface. [`user_address`] and [`control`]
//! translate the bytes that programs write.

mod beneath;
mod calls;
mod control;
mod headers;
pub mod host;
pub(crate) mod loopback;
mod netlink;
pub mod netlink_ports;
pub(crate) mod options;
mod transfer;
mod user_address;

pub use calls::{
    sys_accept, sys_accept4, sys_bind, sys_connect, sys_getpeername, sys_getsockname, sys_listen, sys_shutdown,
    sys_socket, sys_socketpair,
};
pub use options::{sys_getsockopt, sys_setsockopt};
pub use transfer::{sys_recvfrom, sys_recvmmsg, sys_recvmsg, sys_sendmmsg, sys_sendmsg, sys_sendto};

use crate::file::File;
use crate::{Ctx, Errno, Machine};
use host::Socket;
use linux_raw_sys::net as raw;
use quire_heap::{Arc, Vec};
use quire_net::{Address, Family};
use user_address::Told;

/// The socket of an open file.
fn of<M: Machine>(file: &Arc<File<M>>) -> Result<&Socket<M>, Errno> {
    file.stream_as().ok_or_else(|| match netlink::of(file) {
        // A netlink socket has no such call.
        Some(_) => Errno::EOPNOTSUPP,
        None => Errno::ENOTSOCK,
    })
}

/// A netlink socket that receives notices of the kernel (`mq_notify`).
pub(crate) struct NoticeSocket<M: Machine>(Arc<File<M>>);

impl<M: Machine> NoticeSocket<M> {
    /// That of an open file. ENOTSOCK if it is no socket, EINVAL for a socket of another kind.
    pub(crate) fn new(file: Arc<File<M>>) -> Result<Self, Errno> {
        netlink::is_socket(&file)?;
        if netlink::of(&file).is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(NoticeSocket(file))
    }

    /// Puts a notice into its inbox.
    pub(crate) fn tell(&self, notice: Vec<u8>) {
        if let Some(socket) = netlink::of(&self.0) {
            socket.tell(notice);
        }
    }
}

/// An address for a program that asked a socket of this family.
fn told(address: &Address, family: Family) -> Told {
    match address {
        Address::Unnamed => Told::unnamed(),
        Address::Path(path) => Told::path(path),
        Address::Abstract(name) => Told::abstract_name(name),
        Address::Inet(at) => Told::inet(*at, family == Family::Inet6),
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// The caller's credentials for a message: the real ids.
    fn told_credentials(&self) -> quire_net::Credentials {
        beneath::told(self.pid(), self.credentials())
    }

    /// The caller's credentials for the peer of a connection: the effective ids.
    fn peer_credentials(&self) -> quire_net::Credentials {
        let own = self.credentials();
        quire_net::Credentials { pid: self.pid(), uid: own.effective_user, gid: own.effective_group }
    }
}
