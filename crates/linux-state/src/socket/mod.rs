//! Sockets: the host of `quire_net` in this kernel, and the ids of netlink sockets.

mod glue;
pub mod host;
pub mod netlink_ports;

pub use glue::real_credentials;
