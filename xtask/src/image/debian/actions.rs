//! Changes to the files of a root: those that the tables of `tmpfiles.d` and the scripts of packages ask for.
//!
//! A change that the tree does not allow is left out, for example a directory in the place of a file.
//! `systemd-tmpfiles` leaves it out after a message.

use std::path::{Path, PathBuf};

use super::{super::tree::Tree, accounts::Accounts, patterns};

/// The type bits of a FIFO, a character device and a block device.
pub const FIFO: u32 = 0o010_000;
pub const CHARACTER: u32 = 0o020_000;
pub const BLOCK: u32 = 0o060_000;

/// The kernel mounts file systems at these places, so the root needs no nodes below them.
const MOUNTED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The permission bits that a node gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bits {
    pub bits: u32,
    /// Whether a kind of access (read, write, execute) without any bit in the old ones is left out.
    pub masked: bool,
    /// Whether an existing node keeps its bits.
    pub only_new: bool,
}

impl Bits {
    pub fn of(bits: u32) -> Self {
        Self { bits, ..Self::default() }
    }

    /// The bits for a node that has `old` and may be a directory.
    fn over(self, old: u32, directory: bool) -> u32 {
        if !self.masked {
            return self.bits;
        }
        let mut bits = self.bits;
        for access in [0o444, 0o222, 0o111] {
            if old & access == 0 {
                bits &= !access;
            }
        }
        if directory { bits } else { bits & !0o6000 | old & 0o6000 & bits }
    }
}

/// An owner by name or by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    pub user: Option<String>,
    pub group: Option<String>,
    /// Whether an existing node keeps its owner, or its group.
    pub only_new: (bool, bool),
}

impl Owner {
    pub fn of(user: &str, group: &str) -> Self {
        let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Self { user: some(user), group: some(group), only_new: (false, false) }
    }
}

/// The thing that a change makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Make {
    /// A directory.
    Directory,
    /// A file with this content. An existing file is kept, unless `bool` is set.
    File(Vec<u8>, bool),
    /// A symbolic link to this target. An existing node is kept, unless `bool` is set.
    Link(PathBuf, bool),
    /// A copy of a file or of a whole directory, unless a node exists.
    Copy(PathBuf),
    /// A FIFO or a device, with its number.
    Special(u32, u64),
    /// Nothing: the existing nodes change, those that match the path. With `true` the nodes below them change too.
    Nothing(bool),
}

/// A change of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    pub path: PathBuf,
    pub make: Make,
    pub bits: Option<Bits>,
    pub owner: Owner,
}

impl Action {
    pub fn of(path: impl Into<PathBuf>, make: Make) -> Self {
        Self { path: path.into(), make, bits: None, owner: Owner::default() }
    }
}

/// Makes the changes, in order.
pub fn apply(tree: &mut Tree, accounts: &Accounts, actions: &[Action]) {
    for action in actions {
        if !action.path.is_absolute() || MOUNTED.iter().any(|m| action.path.starts_with(m)) {
            continue;
        }
        match action.make {
            Make::Nothing(deep) => {
                for path in patterns::matches(tree, &action.path) {
                    let below = if deep { tree.below(&path) } else { Vec::new() };
                    for node in below.into_iter().chain([path]) {
                        settle(tree, accounts, action, &node, false);
                    }
                }
            }
            _ => {
                let new = !tree.has(&action.path);
                if make(tree, action).is_some() && !matches!(action.make, Make::Link(..)) {
                    settle(tree, accounts, action, &action.path, new);
                }
            }
        }
    }
}

/// Makes the node. `None` if that is impossible.
fn make(tree: &mut Tree, action: &Action) -> Option<()> {
    let path = &action.path;
    let there = tree.has(path);
    match &action.make {
        Make::Nothing(_) => {}
        Make::Directory => tree.directory(path, 0o755).ok()?,
        Make::File(bytes, over) if *over || !there => {
            let bits = tree.mode(path).unwrap_or(0o644);
            tree.file(path, bits, bytes.clone()).ok()?;
        }
        Make::Special(bits, device) if !there => tree.special(path, *bits, *device, 0o644).ok()?,
        Make::Link(to, true) if !tree.has_directory(path) || tree.target(path).is_some() => tree.link(path, to).ok()?,
        // A link to nothing exists too, and is kept.
        Make::Link(to, false) => tree.alias(path, to).ok()?,
        Make::Copy(from) if !there => copy(tree, from, path)?,
        Make::File(..) | Make::Special(..) | Make::Link(..) | Make::Copy(_) => {}
    }
    Some(())
}

/// Copies a file, or a directory with everything in it. Owners and times are not copied.
fn copy(tree: &mut Tree, from: &Path, to: &Path) -> Option<()> {
    if to.starts_with(from) {
        return None;
    }
    if let Some(bytes) = tree.read(from) {
        return tree.file(to, tree.mode(from)?, bytes).ok();
    }
    if !tree.has_directory(from) {
        return None;
    }
    tree.directory(to, tree.mode(from)?).ok()?;
    let from = tree.real(from)?;
    for node in tree.below(&from) {
        let place = to.join(node.strip_prefix(&from).ok()?);
        if let Some(target) = tree.target(&node) {
            tree.alias(&place, &target).ok()?;
        } else if tree.has_directory(&node) {
            tree.directory(&place, tree.mode(&node)?).ok()?;
        } else if let Some(bytes) = tree.read(&node) {
            tree.file(&place, tree.mode(&node)?, bytes).ok()?;
        }
    }
    Some(())
}

/// Sets the bits and the owner of a node.
fn settle(tree: &mut Tree, accounts: &Accounts, action: &Action, path: &Path, new: bool) {
    if let (Some(bits), Some(old)) = (action.bits, tree.mode(path))
        && (new || !bits.only_new)
    {
        let bits = if new { bits.bits } else { bits.over(old, tree.has_directory(path)) };
        tree.set_mode(path, bits);
    }
    let Owner { user, group, only_new } = &action.owner;
    let user = user.as_ref().filter(|_| new || !only_new.0).and_then(|name| accounts.user_number(name));
    let group = group.as_ref().filter(|_| new || !only_new.1).and_then(|name| accounts.group_number(name));
    if let Some((old_user, old_group)) = tree.owner(path) {
        tree.own(path, user.unwrap_or(old_user), group.unwrap_or(old_group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_made_once_and_changed_as_asked() {
        let mut tree = Tree::default();
        tree.file("/usr/share/factory/etc/a", 0o600, "factory").unwrap();
        tree.file("/usr/share/factory/etc/d/b", 0o755, "inside").unwrap();
        tree.link("/usr/share/factory/etc/d/l", "b").unwrap();
        tree.file("/var/log/old", 0o644, "kept").unwrap();
        let accounts = Accounts::default();
        let with = |path: &str, make, bits: u32, owner: (&str, &str)| Action {
            bits: Some(Bits::of(bits)),
            owner: Owner::of(owner.0, owner.1),
            ..Action::of(path, make)
        };
        let actions = [
            with("/run/x", Make::Directory, 0o1750, ("7", "8")),
            with("/run/x/f", Make::File(b"new".to_vec(), false), 0o640, ("", "9")),
            with("/var/log/old", Make::File(b"lost".to_vec(), false), 0o600, ("", "")),
            with("/run/x/p", Make::Special(FIFO, 0), 0o622, ("", "")),
            Action::of("/run/l", Make::Link("x".into(), false)),
            Action::of("/etc/a", Make::Copy("/usr/share/factory/etc/a".into())),
            Action::of("/etc/d", Make::Copy("/usr/share/factory/etc/d".into())),
            // A directory in the place of a file, a copy of nothing, and a place that the kernel mounts.
            Action::of("/var/log/old/below", Make::Directory),
            Action::of("/etc/none", Make::Copy("/usr/share/factory/none".into())),
            Action::of("/dev/x", Make::Directory),
            with("/var/log/*", Make::Nothing(false), 0o400, ("1", "2")),
        ];
        apply(&mut tree, &accounts, &actions);
        assert_eq!((tree.mode("/run/x"), tree.owner("/run/x")), (Some(0o1750), Some((7, 8))));
        assert_eq!((tree.mode("/run/l/f"), tree.owner("/run/x/f")), (Some(0o640), Some((0, 9))));
        assert_eq!(tree.read("/var/log/old").as_deref(), Some(&b"kept"[..]));
        assert_eq!((tree.mode("/var/log/old"), tree.owner("/var/log/old")), (Some(0o400), Some((1, 2))));
        assert_eq!((tree.read("/etc/a"), tree.mode("/etc/a")), (Some(b"factory".to_vec()), Some(0o600)));
        assert_eq!((tree.read("/etc/d/l"), tree.mode("/etc/d/b")), (Some(b"inside".to_vec()), Some(0o755)));
        assert!(tree.has("/run/x/p") && !tree.has("/dev/x") && !tree.has("/etc/none"));
    }

    #[test]
    fn masked_bits_grant_no_access_that_nobody_had() {
        let masked = Bits { masked: true, ..Bits::of(0o2755) };
        assert_eq!((masked.over(0o600, false), masked.over(0o700, true)), (0o644, 0o2755));
        assert_eq!(Bits::of(0o640).over(0, false), 0o640);
    }
}
