//! Who asks: client certificates, tokens, nobody (`apiserver/pkg/authentication`).

use serde_json::{Value, json};

/// The group of all who showed something valid.
pub const AUTHENTICATED: &str = "system:authenticated";
/// May do everything.
pub const MASTERS: &str = "system:masters";
/// May do everything as well, but by a role that the cluster's owner can take away (kubeadm).
pub const CLUSTER_ADMINS: &str = "kubeadm:cluster-admins";
/// Nodes.
pub const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// A user as authentication found it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Extra attributes, such as the pod that a token is bound to.
    pub extra: Vec<(String, String)>,
}

impl User {
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        groups.push(AUTHENTICATED.to_owned());
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    /// Nobody in particular.
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    pub fn node(name: &str) -> Self {
        Self::new(&format!("{NODE_PREFIX}{name}"), &[NODES])
    }

    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::new(
            &format!("system:serviceaccount:{namespace}:{name}"),
            &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")],
        )
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }

    pub fn is_anonymous(&self) -> bool {
        !self.is_in(AUTHENTICATED)
    }

    /// The node that this user is; `Some("")` for a member of the nodes' group whose name tells none.
    pub fn as_node(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX);
        match (name, self.is_in(NODES)) {
            (Some(name), true) => Some(name),
            _ => None,
        }
    }

    /// As reviews show it.
    pub fn to_json(&self) -> Value {
        let mut user = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            user["uid"] = json!(self.uid);
        }
        if !self.extra.is_empty() {
            user["extra"] = self.extra.iter().map(|(key, value)| (key.clone(), json!([value]))).collect();
        }
        user
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_of_the_group_are_nodes() {
        assert_eq!(User::node("a").as_node(), Some("a"));
        assert_eq!(User::new("system:node:a", &[]).as_node(), None);
        assert_eq!(User::new("admin", &[MASTERS]).as_node(), None);
        assert!(User::anonymous().is_anonymous());
    }
}
