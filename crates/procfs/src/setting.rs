//! Common functions for the files in `/proc/sys`: the tables, and the files with one number.

use crate::about::System;
use crate::node::{self, Directory, Item, ItemKind, Table, put};
use quire_fs::FsError;
use quire_linux_state::machine::Machine;
use quire_linux_state::system::settings::Setting;

/// A directory with a table of settings.
pub(super) fn table<M: Machine>(about: &System<M>, items: &'static [Item<M, System<M>>], numbers: u64) -> Directory<M> {
    node::directory(Table { takes_from_pipes: true, ..Table::of_root(*about, items, numbers) })
}

/// The file of the setting with the number `OF`.
pub(super) const fn setting<M: Machine, const OF: usize>() -> ItemKind<M, System<M>> {
    ItemKind::Writable(
        |about, out| put!(out, "{}\n", about.0.settings.get(Setting::numbered(OF))),
        |about, bytes| {
            let text = core::str::from_utf8(bytes).map_err(|_| FsError::Invalid)?;
            let value = text.trim().parse::<i64>().map_err(|_| FsError::Invalid)?;
            about.0.settings.set(Setting::numbered(OF), value).map_err(|_| FsError::Invalid)?;
            Ok(bytes.len())
        },
    )
}

/// Parses an unsigned number that was written to a setting.
pub(super) fn number(bytes: &[u8]) -> Result<u64, FsError> {
    core::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok()).ok_or(FsError::Invalid)
}
