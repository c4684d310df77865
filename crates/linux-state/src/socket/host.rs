//! The types of `quire_net` with this kernel's host, which [`glue`](super::glue) implements.

use crate::Machine;
use crate::file::host::FileHost;
use crate::process::users::Charge;

/// The host of sockets, which is the host of files.
pub struct SocketHost<M: Machine>(pub FileHost<M>);

impl<M: Machine> Clone for SocketHost<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for SocketHost<M> {}

/// A socket with this kernel's host.
pub type Socket<M> = quire_net::Socket<SocketHost<M>>;
/// The table of socket names with this kernel's host.
pub type Network<M> = quire_net::Network<SocketHost<M>>;

/// The charge to a user for files in flight in messages.
pub struct InFlightCharge {
    _charge: Charge,
}

impl From<Charge> for InFlightCharge {
    fn from(charge: Charge) -> Self {
        InFlightCharge { _charge: charge }
    }
}
