//! Fair shares of scarce resources: descriptors, mappings, memory of the budget, time of a pass.
//!
//! Max-min fairness along the tree of control groups. Each group shares evenly with its siblings, as the kernel divides
//! processor time between groups of equal weight. Within a group, each user shares evenly with the others. An owner
//! that claims no more than its share gets all of it, independent of the claims of others; unused shares go to the
//! others. Groups are divided before users because a user may have many ids (subordinate ids of a user namespace), and
//! may create groups only below its own.
//!
//! The next grant goes to the owner that has least after it, so a large claim never overtakes small ones. A claim of
//! several owners counts for the owner that was granted it. The others get it free, so a stranger that maps another
//! user's file takes nothing from that user.
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// User in a control group: a leaf of the tree of [`Owners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(usize);

/// Tree of control groups and their users. Node 0 is the root group; a node's number is above that of its parent.
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

/// Step from a node to one of its children.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Group(String),
    /// Processes of the group itself, beside its child groups: their users share one share.
    Itself,
    User(u32),
}

/// Root.
const TOP: usize = 0;

/// Groups deeper than this count as the group at this depth: deep trees of groups cannot cause long loops.
const DEPTH_MAX: usize = 16;

impl Default for Owners {
    fn default() -> Owners {
        Owners { nodes: vec![Node { parent: TOP, step: Step::Itself }], known: BTreeMap::new() }
    }
}

impl Owners {
    /// Owner of the mappings of this user's processes in this control group; `group` as in `/proc/PID/cgroup`.
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

    /// Name of the owner for people.
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

    /// A node and its ancestors, the root last.
    fn chain(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |node| (*node != TOP).then(|| self.nodes[*node].parent))
    }
}

/// User and control group of an owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Name {
    /// User id in masu's user namespace.
    pub user: u32,
    /// Path of the control group.
    pub group: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} in control group {}", self.user, self.group)
    }
}

/// Amount of each node, and the order of the next grants.
#[derive(Debug)]
pub struct Filling<'o> {
    owners: &'o Owners,
    used: Vec<u64>,
    /// Cost of the next grant of each leaf; `None`: it wants nothing.
    next: Vec<Option<u64>>,
    /// Amount of each node after its next grant, equal to its key in `waiting` of the parent.
    key: Vec<Option<u64>>,
    /// Children with a claim, the next one first.
    waiting: Vec<BTreeSet<(u64, usize)>>,
}

impl<'o> Filling<'o> {
    /// Start without grants or claims.
    pub fn new(owners: &'o Owners) -> Filling<'o> {
        let count = owners.nodes.len();
        let (used, next, key) = (vec![0; count], vec![None; count], vec![None; count]);
        Filling { owners, used, next, key, waiting: vec![BTreeSet::new(); count] }
    }

    /// Sets the cost of the owner's next grant; `None`: it wants nothing more.
    pub fn wants(&mut self, owner: Owner, cost: Option<u64>) {
        if self.next[owner.0] == cost {
            return;
        }
        self.next[owner.0] = cost;
        let owners = self.owners;
        owners.chain(owner.0).for_each(|node| self.place(node));
    }

    /// Owner of the next grant.
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

    /// Sorts a node among its siblings.
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

/// Claim of some owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Owners that benefit from it; empty: it is not requested.
    pub owners: Vec<Owner>,
    /// Amount of the divided resource.
    pub size: u64,
}

/// Granularity of grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// All of a claim or nothing.
    Whole,
    /// Pieces of this size.
    Of(u64),
}

/// Divides `total` between claims, sorted in each owner's order of preference. `may` returns the grantable part of a
/// piece of a claim, and counts it as granted (for whole claims only if it is the whole).
///
/// Returns the granted amount of each claim.
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
