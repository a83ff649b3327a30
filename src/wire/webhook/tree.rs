//! The paths of a hook as one tree, so that a payload is compared with all of them at once.

use crate::config::{JsonPath, Step};

/// The index of a node in the tree. The root is 0.
pub(super) type Place = usize;

/// The nodes of a tree.
#[derive(Debug)]
pub(super) struct Tree(Vec<Node>);

/// A place in a payload that at least one path leads to.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The keys that paths have here, ascending, with the nodes that they lead to.
    keys: Vec<(Box<str>, Place)>,
    /// The indexes that paths have here, with the nodes that they lead to.
    indexes: Vec<(usize, Place)>,
    /// The node of `[*]`.
    pub(super) each: Option<Place>,
    /// The number of the metric path that has `*` here.
    ///
    /// If several paths have it, the smallest number.
    pub(super) any: Option<usize>,
    /// The roles of the value here.
    pub(super) roles: Vec<Role>,
}

/// The role of a value.
///
/// The number is the index of the path among the paths with this role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Device,
    Time,
    Metric(usize),
    Label(usize),
    Metadata(usize),
    Condition(usize),
}

impl Default for Tree {
    fn default() -> Self {
        Self(vec![Node::default()])
    }
}

impl Tree {
    pub(super) fn node(&self, place: Place) -> &Node {
        &self.0[place]
    }

    /// Whether a path has `[*]`.
    pub(super) fn has_each(&self) -> bool {
        self.0.iter().any(|node| node.each.is_some())
    }

    /// Adds a path. Only paths of metrics have `*`.
    pub(super) fn add(&mut self, path: &JsonPath, role: Role) {
        let mut at = 0;
        for step in path.steps() {
            let new = self.0.len();
            let node = &mut self.0[at];
            let next = match step {
                Step::Key(key) => match node.keys.binary_search_by(|(known, _)| (**known).cmp(key)) {
                    Ok(found) => node.keys[found].1,
                    Err(place) => {
                        node.keys.insert(place, (key.as_str().into(), new));
                        new
                    }
                },
                Step::Index(index) => node.index(*index).unwrap_or_else(|| {
                    node.indexes.push((*index, new));
                    new
                }),
                Step::Each => *node.each.get_or_insert(new),
                Step::Any => {
                    if let Role::Metric(number) = role {
                        node.any = Some(node.any.map_or(number, |other| other.min(number)));
                    }
                    return;
                }
            };
            if next == new {
                self.0.push(Node::default());
            }
            at = next;
        }
        self.0[at].roles.push(role);
    }
}

impl Node {
    /// The node of this key, if the value here is an object.
    pub(super) fn key(&self, key: &str) -> Option<Place> {
        let found = self.keys.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        Some(self.keys[found].1)
    }

    /// The node of the element at `index`, if the value here is an array.
    pub(super) fn index(&self, index: usize) -> Option<Place> {
        self.indexes.iter().find(|(known, _)| *known == index).map(|&(_, place)| place)
    }

    /// Whether a path leads into the array here, other than by `[*]`.
    pub(super) const fn has_indexes(&self) -> bool {
        !self.indexes.is_empty()
    }

    /// Whether a path takes the value here, so that it is no metric of a `*` above.
    pub(super) fn is_taken(&self) -> bool {
        self.roles.iter().any(|role| !matches!(role, Role::Condition(_)))
    }
}
