//! Who somebody is, once it is known.

use std::collections::BTreeMap;

pub const ANONYMOUS: &str = "system:anonymous";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const AUTHENTICATED: &str = "system:authenticated";

/// A user as the API server's reviews know one. An extension of each request that was let in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Nobody in particular.
    pub fn anonymous() -> Self {
        Identity { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Identity::default() }
    }

    /// With the group of all that were recognised (`apiserver/pkg/authentication/group`).
    pub fn authenticated(mut self) -> Self {
        let said = |group: &String| matches!(group.as_str(), AUTHENTICATED | UNAUTHENTICATED);
        if self.name != ANONYMOUS && !self.groups.iter().any(said) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_recognised_is_added_once() {
        let groups = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            Identity { name: name.to_owned(), groups, ..Identity::default() }.authenticated().groups
        };
        assert_eq!(groups("a", &["g"]), ["g", AUTHENTICATED]);
        assert_eq!(groups("a", &[AUTHENTICATED]), [AUTHENTICATED]);
        assert_eq!(groups("a", &[UNAUTHENTICATED]), [UNAUTHENTICATED]);
        assert_eq!(groups(ANONYMOUS, &[]), Vec::<String>::new());
        assert_eq!(Identity::anonymous().authenticated(), Identity::anonymous());
    }
}
