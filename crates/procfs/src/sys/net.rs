//! `/proc/sys/net`: network settings.

use crate::about::System;
use crate::node::{Directory, Item, ItemKind, put};
use crate::setting::{setting, table};
use quire_fs::FsError;
use quire_fs::generated::Text;
use quire_linux_state::machine::Machine;
use quire_linux_state::system::settings::Setting;

struct Names<M>(core::marker::PhantomData<M>);

macro_rules! number {
    ($name:literal, $setting:ident) => {
        Item { name: $name, kind: setting::<M, { Setting::$setting as usize }>() }
    };
}

impl<M: Machine> Names<M> {
    const TOP: &'static [Item<M, System<M>>] = &[
        Item { name: "core", kind: ItemKind::Directory(|a| table(a, Self::CORE, 1420)) },
        Item { name: "ipv4", kind: ItemKind::Directory(|a| table(a, Self::FOUR, 1440)) },
        Item { name: "ipv6", kind: ItemKind::Directory(|a| table(a, Self::SIX, 1480)) },
    ];
    const CORE: &'static [Item<M, System<M>>] = &[
        Item::file("default_qdisc", |_, out| put!(out, "pfifo_fast\n")),
        number!("netdev_max_backlog", PacketBacklog),
        number!("optmem_max", OptionMemory),
        number!("rmem_default", FirstReceive),
        number!("rmem_max", MostReceive),
        number!("somaxconn", MostBacklog),
        number!("wmem_default", FirstSend),
        number!("wmem_max", MostSend),
    ];
    const FOUR: &'static [Item<M, System<M>>] = &[
        number!("ip_default_ttl", Hops),
        number!("ip_forward", Forward),
        Item { name: "ip_local_port_range", kind: ItemKind::Writable(ports, set_ports) },
        number!("ip_unprivileged_port_start", FirstFreePort),
        Item::file("tcp_allowed_congestion_control", |_, out| put!(out, "reno cubic\n")),
        Item::file("tcp_available_congestion_control", |_, out| put!(out, "reno cubic\n")),
        Item::file("tcp_congestion_control", |_, out| put!(out, "cubic\n")),
        number!("tcp_fastopen", FastOpen),
        number!("tcp_fin_timeout", FinTimeout),
        number!("tcp_keepalive_intvl", KeepAliveInterval),
        number!("tcp_keepalive_probes", KeepAliveProbes),
        number!("tcp_keepalive_time", KeepAliveTime),
        number!("tcp_max_syn_backlog", ConnectBacklog),
        number!("tcp_retries2", Tries),
        // The lowest, the initial and the highest size of a receive buffer. A buffer keeps its initial size unless a
        // program changes it.
        Item::file("tcp_rmem", |_, out| put!(out, "2304\t212992\t425984\n")),
        number!("tcp_sack", Selective),
        number!("tcp_slow_start_after_idle", SlowStart),
        number!("tcp_syn_retries", ConnectTries),
        number!("tcp_synack_retries", AcceptTries),
        number!("tcp_syncookies", Cookies),
        number!("tcp_timestamps", Timestamps),
        number!("tcp_tw_reuse", ReuseWaiting),
        number!("tcp_window_scaling", Scaling),
        Item::file("tcp_wmem", |_, out| put!(out, "4608\t212992\t425984\n")),
    ];
    const SIX: &'static [Item<M, System<M>>] = &[
        number!("bindv6only", OnlySix),
        Item { name: "conf", kind: ItemKind::Directory(|a| table(a, Self::CONFIGURATIONS, 1485)) },
    ];
    const CONFIGURATIONS: &'static [Item<M, System<M>>] = &[
        Item { name: "all", kind: ItemKind::Directory(|a| table(a, Self::CONFIGURATION, 1490)) },
        Item { name: "default", kind: ItemKind::Directory(|a| table(a, Self::CONFIGURATION, 1492)) },
        Item { name: "lo", kind: ItemKind::Directory(|a| table(a, Self::CONFIGURATION, 1494)) },
    ];
    const CONFIGURATION: &'static [Item<M, System<M>>] =
        &[Item::file("disable_ipv6", |_, out| put!(out, "0\n")), Item::file("forwarding", |_, out| put!(out, "0\n"))];
}

/// The directory `/proc/sys/net`.
pub(crate) fn directory<M: Machine>(about: &System<M>) -> Directory<M> {
    table(about, Names::<M>::TOP, 1400)
}

fn ports<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let ports = about.0.network.automatic_ports();
    put!(out, "{}\t{}\n", ports.start(), ports.end())
}

fn set_ports<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u16>().map_err(|_| FsError::Invalid));
    let mut next = || numbers.next().ok_or(FsError::Invalid)?;
    let (first, last) = (next()?, next()?);
    about.0.network.set_automatic_ports(first..=last)?;
    Ok(bytes.len())
}
