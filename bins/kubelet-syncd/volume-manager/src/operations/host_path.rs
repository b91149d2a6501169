//! Paths of the host that a PersistentVolume names (upstream `pkg/volume/hostpath`): nothing is made, but looked at.

use bulkhead_ipc::volnetd as api;

use super::mount::Mount;
use super::{Failure, Phase};

impl Mount<'_> {
    pub(super) async fn set_up_host_path(&self, path: &str, kind: &str) -> Result<(), Failure> {
        super::is_plain(&self.spec, "kubernetes.io/host-path")?;
        let Some(known) = api::HostPathType::from_str_name(&host_path_type(kind)) else {
            return Err(Failure::new(Phase::SetUp, format!("{kind} is an invalid volume type")));
        };
        let request = api::CheckHostPathRequest {
            pod_uid: self.uid.to_string(),
            volume: self.spec.name.clone(),
            path: path.to_owned(),
            r#type: known.into(),
        };
        self.one_of_its_pods()?;
        let reply = self.context.ports.verbs.check_host_path(request).await;
        let reply = reply.map_err(|error| Failure::verb(Phase::SetUp, &error))?;
        self.mounted(reply.host_path);
        Ok(())
    }
}

/// The wire's name of the API's.
fn host_path_type(kind: &str) -> String {
    let kind = if kind.is_empty() { "Unspecified" } else { kind };
    let mut name = "HOST_PATH_TYPE".to_owned();
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_of_the_api_is_one_on_the_wire() {
        use api::HostPathType as Type;
        for (kind, expected) in [
            ("", Some(Type::Unspecified)),
            ("DirectoryOrCreate", Some(Type::DirectoryOrCreate)),
            ("Directory", Some(Type::Directory)),
            ("FileOrCreate", Some(Type::FileOrCreate)),
            ("File", Some(Type::File)),
            ("Socket", Some(Type::Socket)),
            ("CharDevice", Some(Type::CharDevice)),
            ("BlockDevice", Some(Type::BlockDevice)),
            ("Pipe", None),
        ] {
            assert_eq!(Type::from_str_name(&host_path_type(kind)), expected, "{kind}");
        }
    }
}
