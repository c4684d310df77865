//! The users and groups of a root file system: those that every Debian machine has, and those that the packages
//! request.

use std::path::PathBuf;

use super::super::tree::Tree;
use crate::failure::Result;

/// The lowest number of a system user, as in adduser.
const FIRST: u32 = 100;

/// A request of a package for a user, a group, or a member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Account {
    /// A system user.
    User {
        /// The user's name.
        name: String,
        /// The user's number, if the package needs a certain one.
        number: Option<u32>,
        /// The name of the main group. `None` stands for the group with the user's own name, or else for `nogroup`.
        group: Option<String>,
        /// Whether the user has a group with its own name.
        own_group: bool,
        /// The user's home directory.
        home: Option<PathBuf>,
        /// Whether the home directory is created.
        make_home: bool,
        /// The user's shell.
        shell: Option<String>,
    },
    /// A group, and its number if the package needs a certain one.
    Group(String, Option<u32>),
    /// A user (first name) joins a group (second name).
    Member(String, String),
    /// Later accounts without a fixed number take one from this range, from the highest down.
    Range(u32, u32),
}

/// Whether a name, a directory or a shell can be a field of `/etc/passwd`.
fn is_field(text: &str) -> bool {
    !text.is_empty() && !text.contains([':', ',', '\n', '\0'])
}

impl Account {
    /// Whether all names of the account are fields of `/etc/passwd`.
    fn is_plain(&self) -> bool {
        match self {
            Account::User { name, group, home, shell, .. } => {
                is_field(name)
                    && group.as_deref().is_none_or(is_field)
                    && home.as_ref().is_none_or(|home| home.to_str().is_some_and(is_field))
                    && shell.as_deref().is_none_or(is_field)
            }
            Account::Group(name, _) => is_field(name),
            Account::Member(user, group) => is_field(user) && is_field(group),
            Account::Range(..) => true,
        }
    }
}

/// One line of `/etc/passwd`.
struct User {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
    make_home: bool,
    line: String,
}

/// All accounts of a root file system.
#[derive(Default)]
pub struct Accounts {
    users: Vec<User>,
    /// The numbers for accounts without a fixed one, if a table limits them: the lowest and the highest of each range.
    ranges: Vec<(u32, u32)>,
    /// The name, the number and the members of each group.
    groups: Vec<(String, u32, Vec<String>)>,
}

impl Accounts {
    /// Reads the accounts of the package `base-passwd`.
    pub fn read_base(&mut self, tree: &Tree) {
        let text = |name: &str| {
            let bytes = tree.read(format!("/usr/share/base-passwd/{name}.master")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        for line in text("group").lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(gid)) = (fields.next(), fields.nth(1).and_then(|n| n.parse().ok())) {
                self.groups.push((name.to_owned(), gid, Vec::new()));
            }
        }
        for line in text("passwd").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, uid, gid, _, home, _] = fields[..]
                && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
            {
                // The `x` says that the password is in the shadow file.
                let line = line.replacen(":*:", ":x:", 1);
                self.users.push(User { name: name.to_owned(), uid, gid, home: home.into(), make_home: false, line });
            }
        }
    }

    /// Adds an account that a package needs. An existing account is not changed. An account with a name that would
    /// break the lines of `/etc/passwd` is left out.
    pub fn add(&mut self, account: Account) {
        if !account.is_plain() {
            return;
        }
        match account {
            Account::Range(low, high) => self.ranges.push((low, high)),
            Account::Group(name, number) => drop(self.group(&name, number)),
            Account::Member(user, group) => {
                self.group(&group, None);
                if let Some((_, _, members)) = self.groups.iter_mut().find(|g| g.0 == group)
                    && !members.contains(&user)
                {
                    members.push(user);
                }
            }
            Account::User { name, number, group, own_group, home, make_home, shell } => {
                if self.users.iter().any(|u| u.name == name) {
                    return;
                }
                let taken = |n: &u32| self.users.iter().any(|u| u.uid == *n);
                let uid = self.free(number, taken);
                let gid = match group {
                    Some(group) => self.group(&group, None),
                    None if own_group => self.group(&name, number),
                    None => self.group("nogroup", Some(65534)),
                };
                let home = home.unwrap_or_else(|| "/nonexistent".into());
                let shell = shell.unwrap_or_else(|| "/usr/sbin/nologin".to_owned());
                let line = format!("{name}:x:{uid}:{gid}::{}:{shell}", home.display());
                self.users.push(User { name, uid, gid, home, make_home, line });
            }
        }
    }

    /// The wanted number if it is free, or else the first free number of the ranges, or else of all system accounts.
    fn free(&self, wanted: Option<u32>, taken: impl Fn(&u32) -> bool) -> u32 {
        let free = |n: &u32| !taken(n);
        let within = || self.ranges.iter().find_map(|(low, high)| (*low..=*high).rev().find(free));
        wanted.filter(free).or_else(within).or_else(|| (FIRST..).find(free)).unwrap_or(FIRST)
    }

    /// The number of a user by name, or by the number itself.
    pub fn user_number(&self, name: &str) -> Option<u32> {
        self.users.iter().find(|u| u.name == name).map(|u| u.uid).or_else(|| name.parse().ok())
    }

    /// The number of a group by name, or by the number itself.
    pub fn group_number(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|g| g.0 == name).map(|g| g.1).or_else(|| name.parse().ok())
    }

    /// The number of a group. The group is added if it does not exist. The name may be a number.
    fn group(&mut self, name: &str, number: Option<u32>) -> u32 {
        if let Some(found) = self.group_number(name) {
            return found;
        }
        let gid = self.free(number, |n| self.groups.iter().any(|g| g.1 == *n));
        self.groups.push((name.to_owned(), gid, Vec::new()));
        gid
    }

    /// Writes the files of `/etc`, and makes users the owners of their home directories.
    pub fn install(&self, tree: &mut Tree) -> Result<()> {
        if self.users.is_empty() {
            return Ok(());
        }
        debug_assert!(self.users.iter().all(|u| u.line.split(':').count() == 7 && !u.line.contains('\n')));
        let lines = |each: &dyn Fn(&User) -> String| self.users.iter().map(each).collect::<String>();
        tree.file("/etc/passwd", 0o644, lines(&|u| format!("{}\n", u.line)))?;
        tree.file("/etc/shadow", 0o640, lines(&|u| format!("{}:*:19000:0:99999:7:::\n", u.name)))?;
        let groups = self.groups.iter().map(|(name, gid, members)| format!("{name}:x:{gid}:{}\n", members.join(",")));
        tree.file("/etc/group", 0o644, groups.collect::<String>())?;
        let gshadow = self.groups.iter().map(|(name, _, members)| format!("{name}:*::{}\n", members.join(",")));
        tree.file("/etc/gshadow", 0o640, gshadow.collect::<String>())?;
        if let Some((_, shadow, _)) = self.groups.iter().find(|g| g.0 == "shadow") {
            tree.own("/etc/shadow", 0, *shadow);
            tree.own("/etc/gshadow", 0, *shadow);
        }
        for user in self.users.iter().filter(|u| u.uid >= FIRST && u.uid < 1000) {
            if user.make_home {
                tree.directory(&user.home, 0o755)?;
            }
            // A home directory below `/var` belongs to its user, even if a package contains the directory.
            if user.make_home || user.home.starts_with("/var") {
                tree.own(&user.home, user.uid, user.gid);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, own_group: bool) -> Account {
        let home = Some(PathBuf::from(format!("/var/lib/{name}")));
        Account::User { name: name.into(), number: None, group: None, own_group, home, make_home: true, shell: None }
    }

    fn text(tree: &Tree, at: &str) -> String {
        String::from_utf8(tree.read(at).unwrap()).unwrap()
    }

    #[test]
    fn users_get_free_numbers_groups_and_homes() {
        let mut tree = Tree::default();
        let base = "/usr/share/base-passwd";
        tree.file(format!("{base}/passwd.master"), 0o644, "root:*:0:0:root:/root:/bin/bash\n").unwrap();
        tree.file(format!("{base}/group.master"), 0o644, "root:*:0:\nshadow:*:42:\nnogroup:*:65534:\n").unwrap();
        let mut accounts = Accounts::default();
        accounts.read_base(&tree);
        for _ in 0..2 {
            accounts.add(user("redis", true));
            accounts.add(user("plain", false));
            accounts.add(Account::Member("redis".into(), "ssl-cert".into()));
        }
        accounts.install(&mut tree).unwrap();
        assert_eq!(
            text(&tree, "/etc/passwd"),
            "root:x:0:0:root:/root:/bin/bash\nredis:x:100:100::/var/lib/redis:/usr/sbin/nologin\n\
             plain:x:101:65534::/var/lib/plain:/usr/sbin/nologin\n"
        );
        assert_eq!(
            text(&tree, "/etc/group"),
            "root:x:0:\nshadow:x:42:\nnogroup:x:65534:\nredis:x:100:\nssl-cert:x:101:redis\n"
        );
        assert!(tree.has_directory("/var/lib/redis"));
        assert_eq!(text(&tree, "/etc/shadow").lines().count(), 3);
    }
}
