//! Fair shares of what is scarce: descriptors, mappings, memory of the budget, time of a pass.
//!
//! Max-min fairness along the tree of control groups: each group shares evenly with its siblings, as the kernel divides processor
//! time between groups of equal weight, and in a group each user with the others in it. So an owner that asks for no more than
//! its share has all of it, whatever others ask for; a share that is not used goes to the others. Groups come before users because
//! a user may have many ids (subordinate ids of a user namespace), and may make groups only below its own.
//!
//! The next grant goes to whoever has least after it, so a large claim never overtakes small ones. A claim of several owners counts
//! for the one that had it granted; the others have it for nothing, so a stranger who maps somebody's file takes nothing from them.
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A user in a control group: a leaf of the tree of [`Owners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(usize);

/// The tree of control groups and their users. Node 0 is the topmost group; a node's number is above that of its parent.
#[derive(Clone, Debug)]
pub struct Owners {
    nodes: Vec<Node>,
    known: BTreeMap<(usize, Step), usize>,
}

#[derive(Clone, Debug)]
struct Node {
    parent: usize,
    step: Step,
}

/// The step from a node to one of its children.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Group(String),
    /// The processes of the group itself, beside the groups below it: its users share one share.
    Itself,
    User(u32),
}

/// The root.
const TOP: usize = 0;

/// Groups deeper than this count as the one at this depth: who may make groups makes no long work.
const DEPTH_MAX: usize = 16;

impl Default for Owners {
    fn default() -> Owners {
        Owners { nodes: vec![Node { parent: TOP, step: Step::Itself }], known: BTreeMap::new() }
    }
}

impl Owners {
    /// The owner of what processes of this user in this control group map; `group` as `/proc/PID/cgroup` has it.
    pub fn of(&mut self, group: &str, user: u32) -> Owner {
        let mut node = TOP;
        for name in group.split('/').filter(|name| !name.is_empty()).take(DEPTH_MAX) {
            node = self.child(node, Step::Group(name.to_owned()));
        }
        node = self.child(node, Step::Itself);
        Owner(self.child(node, Step::User(user)))
    }

    fn child(&mut self, parent: usize, step: Step) -> usize {
        let next = self.nodes.len();
        let node = *self.known.entry((parent, step.clone())).or_insert(next);
        if node == next {
            self.nodes.push(Node { parent, step });
        }
        node
    }

    /// The owner as people know it.
    pub fn name(&self, owner: Owner) -> Name {
        let (mut user, mut groups) = (0, Vec::new());
        self.chain(owner.0).for_each(|node| match &self.nodes[node].step {
            Step::Group(name) => groups.push(name.as_str()),
            Step::User(id) => user = *id,
            Step::Itself => {}
        });
        groups.reverse();
        Name { user, group: format!("/{}", groups.join("/")) }
    }

    /// A node and those above it, the root last.
    fn chain(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |node| (*node != TOP).then(|| self.nodes[*node].parent))
    }
}

/// An owner's user and control group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Name {
    /// The user's id, as masu's user namespace has it.
    pub user: u32,
    /// The control group's path.
    pub group: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} in control group {}", self.user, self.group)
    }
}

/// What each node has, and who is next.
#[derive(Debug)]
pub struct Filling<'o> {
    owners: &'o Owners,
    used: Vec<u64>,
    /// For each leaf, what its next grant would cost; `None`: it wants nothing.
    next: Vec<Option<u64>>,
    /// What each node has after its next grant, as it stands in `waiting` of its parent.
    key: Vec<Option<u64>>,
    /// The children that want something, the next one first.
    waiting: Vec<BTreeSet<(u64, usize)>>,
}

impl<'o> Filling<'o> {
    /// Nobody has anything or wants anything.
    pub fn new(owners: &'o Owners) -> Filling<'o> {
        let count = owners.nodes.len();
        let (used, next, key) = (vec![0; count], vec![None; count], vec![None; count]);
        Filling { owners, used, next, key, waiting: vec![BTreeSet::new(); count] }
    }

    /// The next grant of `owner` costs so much; `None`: it wants nothing more.
    pub fn wants(&mut self, owner: Owner, cost: Option<u64>) {
        if self.next[owner.0] == cost {
            return;
        }
        self.next[owner.0] = cost;
        let owners = self.owners;
        owners.chain(owner.0).for_each(|node| self.place(node));
    }

    /// Whoever is next.
    pub fn first(&self) -> Option<Owner> {
        let mut node = TOP;
        while let Some((_, child)) = self.waiting[node].first() {
            node = *child;
        }
        (node != TOP).then_some(Owner(node))
    }

    /// Counts a grant.
    pub fn grant(&mut self, to: Owner, amount: u64) {
        let owners = self.owners;
        owners.chain(to.0).for_each(|node| self.used[node] = self.used[node].saturating_add(amount));
        owners.chain(to.0).for_each(|node| self.place(node));
    }

    /// Puts a node where it belongs among its siblings.
    fn place(&mut self, node: usize) {
        let own = self.next[node];
        let of_child = || self.waiting[node].first().map(|(key, child)| key - self.used[*child]);
        let key = own.or_else(of_child).map(|cost| self.used[node].saturating_add(cost));
        let waiting = &mut self.waiting[self.owners.nodes[node].parent];
        if node == TOP || self.key[node] == key {
            return;
        }
        if let Some(old) = std::mem::replace(&mut self.key[node], key) {
            waiting.remove(&(old, node));
        }
        if let Some(key) = key {
            waiting.insert((key, node));
        }
    }
}

/// Something that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Everybody who would have it. Nobody: nobody asks for it.
    pub owners: Vec<Owner>,
    /// How much of what is divided.
    pub size: u64,
}

/// In what pieces claims are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// All of a claim or nothing.
    Whole,
    /// So much at a time.
    Of(u64),
}

/// Divides `total` between claims, which stand in the order in which each owner wants them. `may` says how much of a claim may
/// be granted of a piece, and counts on that being granted (but for whole claims, if it is less).
///
/// Returns how much of each claim is granted.
pub fn divide(
    owners: &Owners,
    claims: &[Claim],
    total: u64,
    pieces: Pieces,
    mut may: impl FnMut(usize, u64) -> u64,
) -> Vec<u64> {
    let mut queues: BTreeMap<Owner, std::iter::Peekable<std::vec::IntoIter<usize>>> = BTreeMap::new();
    let mut lists: BTreeMap<Owner, Vec<usize>> = BTreeMap::new();
    for (nth, claim) in claims.iter().enumerate() {
        claim.owners.iter().for_each(|owner| lists.entry(*owner).or_default().push(nth));
    }
    queues.extend(lists.into_iter().map(|(owner, list)| (owner, list.into_iter().peekable())));
    let (mut granted, mut is_over) = (vec![0u64; claims.len()], vec![false; claims.len()]);
    let mut left = total;
    let mut filling = Filling::new(owners);
    let piece = |rest: u64| if let Pieces::Of(most) = pieces { rest.min(most.max(1)) } else { rest };
    let mut ask = |filling: &mut Filling<'_>, owner: Owner, granted: &[u64], is_over: &[bool]| {
        let queue = queues.get_mut(&owner)?;
        while queue.next_if(|nth| is_over[*nth] || granted[*nth] == claims[*nth].size).is_some() {}
        let next = queue.peek().copied();
        filling.wants(owner, next.map(|nth| piece(claims[nth].size - granted[nth])));
        next
    };
    let all: BTreeSet<Owner> = claims.iter().flat_map(|claim| claim.owners.iter().copied()).collect();
    for owner in all {
        ask(&mut filling, owner, &granted, &is_over);
    }
    while let Some(owner) = filling.first().filter(|_| left > 0) {
        let Some(nth) = ask(&mut filling, owner, &granted, &is_over) else { continue };
        let claim = &claims[nth];
        let wanted = piece(claim.size - granted[nth]);
        let fits = if wanted <= left { wanted } else { left };
        let given = match pieces {
            Pieces::Whole if fits < wanted || may(nth, wanted) < wanted => 0,
            Pieces::Whole => wanted,
            Pieces::Of(_) => may(nth, fits).min(fits),
        };
        (granted[nth], left, is_over[nth]) = (granted[nth] + given, left - given, given < wanted);
        filling.grant(owner, given);
        for owner in &claim.owners {
            ask(&mut filling, *owner, &granted, &is_over);
        }
    }
    granted
}

#[cfg(test)]
mod tests;
