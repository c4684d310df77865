//! Sockets: Linux's calls, addresses, options and messages over the sockets of `quire_net`.
//!
//! [`calls`] makes, names and connects sockets. [`transfer`] sends and receives. [`options`] has `getsockopt` and
//! `setsockopt`. [`netlink`] and [`loopback`] answer requests about the interface. [`user_address`] and [`control`]
//! translate the bytes that programs write.

mod calls;
mod control;
mod headers;
pub mod loopback;
mod netlink;
pub mod options;
mod transfer;
mod user_address;

pub(crate) use calls::{accept, go_on_connecting};
pub use calls::{
    sys_accept, sys_accept4, sys_bind, sys_connect, sys_getpeername, sys_getsockname, sys_listen, sys_shutdown,
    sys_socket, sys_socketpair,
};
pub use options::{sys_getsockopt, sys_setsockopt};
pub(crate) use transfer::{From, receive_from, receive_message, send_bytes};
pub use transfer::{sys_recvfrom, sys_recvmmsg, sys_recvmsg, sys_sendmmsg, sys_sendmsg, sys_sendto};

use linux_raw_sys::net as raw;
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Address, Family};
use user_address::OutAddress;

/// The socket of an open file.
fn of<M: Machine>(file: &Arc<File<M>>) -> Result<&Socket<M>, Errno> {
    file.stream_as().ok_or_else(|| match netlink::of(file) {
        // The call is not supported for netlink sockets.
        Some(_) => Errno::EOPNOTSUPP,
        None => Errno::ENOTSOCK,
    })
}

/// A netlink socket that receives notifications of the kernel (`mq_notify`).
pub(crate) struct NoticeSocket<M: Machine>(Arc<File<M>>);

impl<M: Machine> NoticeSocket<M> {
    /// The netlink socket of an open file. ENOTSOCK if the file is no socket, EINVAL for another socket.
    pub(crate) fn new(file: Arc<File<M>>) -> Result<Self, Errno> {
        netlink::is_socket(&file)?;
        if netlink::of(&file).is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(NoticeSocket(file))
    }

    /// Puts a notice into the socket's inbox.
    pub(crate) fn deliver(&self, notice: Vec<u8>) {
        if let Some(socket) = netlink::of(&self.0) {
            socket.deliver(notice);
        }
    }
}

/// Converts an address to the bytes for a program. `family` is the family of the program's socket.
fn out_address(address: &Address, family: Family) -> OutAddress {
    match address {
        Address::Unnamed => OutAddress::unnamed(),
        Address::Path(path) => OutAddress::path(path),
        Address::Abstract(name) => OutAddress::abstract_name(name),
        Address::Inet(at) => OutAddress::inet(*at, family == Family::Inet6),
    }
}

/// The caller's credentials for a message, which have the real ids.
fn real_credentials<M: Machine>(ctx: &Ctx<'_, M>) -> quire_net::Credentials {
    quire_linux_state::socket::real_credentials(ctx.pid(), ctx.credentials())
}

/// The caller's credentials for the peer of a connection, which have the effective ids.
fn peer_credentials<M: Machine>(ctx: &Ctx<'_, M>) -> quire_net::Credentials {
    let own = ctx.credentials();
    quire_net::Credentials { pid: ctx.pid(), uid: own.effective_user, gid: own.effective_group }
}
