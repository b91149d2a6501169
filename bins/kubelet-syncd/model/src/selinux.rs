//! The labels that files of containers get where SELinux is on (upstream's `label.InitLabels` of go-selinux, which the runtime
//! uses as well): of the policy's word for files of containers, and of what a pod asks for.

use std::path::Path;

use k8s_openapi::api::core::v1::SELinuxOptions;

/// Policies say here what containers' processes and files are, relative to the machine's root. The first that is there counts.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";
/// Which policy is loaded, and below which folder it lies.
const POLICIES: &str = "etc/selinux";

/// SELinux as the machine has it on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeLinux {
    /// Of files of containers; `None`: the policy does not know of containers, and nothing is labelled.
    file: Option<Context>,
    /// Processes of containers have levels: one of its own for each pod that names none.
    levels: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Context {
    user: String,
    role: String,
    kind: String,
    level: String,
}

impl Context {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(ToOwned::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Context { user, role, kind, level: parts.next().unwrap_or_default() })
    }

    fn text(&self) -> String {
        let Context { user, role, kind, level } = self;
        if level.is_empty() { format!("{user}:{role}:{kind}") } else { format!("{user}:{role}:{kind}:{level}") }
    }
}

/// The value of a key in a file of `key = "value"` lines.
fn value(text: &str, key: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
    let mut pairs = lines.filter_map(|line| line.split_once('='));
    // As upstream reads it, the last one counts.
    let found = pairs.rfind(|(name, _)| name.trim() == key)?;
    Some(found.1.trim().trim_matches('"').to_owned())
}

impl SeLinux {
    /// Whether SELinux is on, below `root` (`/` on a real machine).
    pub fn is_on(root: &Path) -> bool {
        root.join("sys/fs/selinux/enforce").exists()
    }

    /// What is there below `root`; `None`: SELinux is off. All of it is world-readable.
    pub fn read(root: &Path) -> Option<Self> {
        if !Self::is_on(root) {
            return None;
        }
        let contexts = std::fs::read_to_string(root.join(CONTEXTS)).or_else(|_| {
            let config = std::fs::read_to_string(root.join(POLICIES).join("config"))?;
            let policy = value(&config, "SELINUXTYPE").filter(|name| !name.contains('/')).unwrap_or_default();
            std::fs::read_to_string(root.join(POLICIES).join(policy).join("contexts/lxc_contexts"))
        });
        Some(Self::of(&contexts.unwrap_or_default()))
    }

    /// Of the text of `lxc_contexts`.
    fn of(text: &str) -> Self {
        let context = |key| value(text, key).as_deref().and_then(Context::parse);
        let process = context("process");
        // Without a word for processes the runtime labels nothing.
        let file = process.is_some().then(|| context("file")).flatten();
        SeLinux { file, levels: process.is_some_and(|process| !process.level.is_empty()) }
    }

    /// The label of files of a container with these options; empty where it is not known, because the runtime draws the level of
    /// a pod that names none.
    pub fn file_label(&self, options: &SELinuxOptions) -> String {
        let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let (user, level) = (given(&options.user), given(&options.level));
        let asks = [&user, &level, &given(&options.role), &given(&options.type_)].iter().any(|part| part.is_some());
        let Some(file) = self.file.as_ref().filter(|_| asks) else { return String::new() };
        if level.is_none() && self.levels {
            return String::new();
        }
        let mut label = file.clone();
        label.user = user.unwrap_or(label.user);
        label.level = level.unwrap_or(label.level);
        label.text()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FEDORA: &str = "process = \"system_u:system_r:container_t:s0\"\ncontent = \"system_u:object_r:virt_var_lib_t:s0\"\n\
        # file = \"not:this:one\"\nfile = \"system_u:object_r:container_file_t:s0\"\nro_file=\"system_u:object_r:container_ro_file_t:s0\"\n";

    fn options(value: serde_json::Value) -> SELinuxOptions {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn labels_are_made_of_user_and_level() {
        let fedora = SeLinux::of(FEDORA);
        let plain = SeLinux::of("process=a:b:c\nfile=u:r:t");
        for (selinux, asked, label) in [
            (&fedora, json!({"level": "s0:c1,c2"}), "system_u:object_r:container_file_t:s0:c1,c2"),
            (&fedora, json!({"level": "s0:c1,c2", "user": "me_u"}), "me_u:object_r:container_file_t:s0:c1,c2"),
            // A process's role and type are not its files'.
            (&fedora, json!({"level": "s0", "role": "r", "type": "spc_t"}), "system_u:object_r:container_file_t:s0"),
            // The runtime draws a level, and nobody knows which.
            (&fedora, json!({"type": "spc_t"}), ""),
            (&fedora, json!({"user": "me_u"}), ""),
            (&fedora, json!({}), ""),
            (&fedora, json!({"level": ""}), ""),
            // A policy without levels.
            (&plain, json!({"type": "x"}), "u:r:t"),
            (&plain, json!({"level": "s1"}), "u:r:t:s1"),
            (&SeLinux::of(""), json!({"level": "s0"}), ""),
            (&SeLinux::of("file=u:r:t"), json!({"level": "s0"}), ""),
            (&SeLinux::of("process=a:b:c:s0\nfile=short"), json!({"level": "s0"}), ""),
        ] {
            assert_eq!(selinux.file_label(&options(asked.clone())), label, "{asked}");
        }
    }

    #[test]
    fn what_is_read() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(SeLinux::read(root.path()), None);
        put("sys/fs/selinux/enforce", "0");
        assert_eq!(SeLinux::read(root.path()), Some(SeLinux::default()));
        put("etc/selinux/config", "# a word\nSELINUX=enforcing\nSELINUXTYPE=targeted\n");
        put("etc/selinux/targeted/contexts/lxc_contexts", FEDORA);
        assert_eq!(SeLinux::read(root.path()), Some(SeLinux::of(FEDORA)));
        put(CONTEXTS, "process=a:b:c\nfile=u:r:t");
        assert_eq!(SeLinux::read(root.path()), Some(SeLinux::of("process=a:b:c\nfile=u:r:t")));
        put("etc/selinux/config", "SELINUXTYPE=../../elsewhere");
        std::fs::remove_file(root.path().join(CONTEXTS)).unwrap();
        assert_eq!(SeLinux::read(root.path()), Some(SeLinux::default()));
    }
}
