//! The value of every flag as Go's pflag prints it: what /flagz shows.

use std::collections::BTreeMap;

use super::{Flag, Set, Settings, all};
use crate::kubelet::{KubeletConfiguration, TextMap};
use crate::kubelet_flags::KubeletFlags;

/// Flags whose values may be secrets: upstream marks none, and shows these headers by their names alone.
const MASKED: &str = "manifest-url-header";

/// All flags with the values in force: what the command line said, and for a field of the configuration what came of the
/// files, the drop-ins and the command line together.
pub fn effective(flags: &KubeletFlags, kubelet: &KubeletConfiguration) -> BTreeMap<String, String> {
    let mut settings = Settings { flags: flags.clone(), kubelet: kubelet.clone(), ..Settings::default() };
    all().map(|flag| (flag.name.to_owned(), flag.show(&mut settings))).collect()
}

impl Flag {
    fn show(&self, settings: &mut Settings) -> String {
        // An unset pointer shows the flag's default.
        let or_default = |value: Option<String>| value.unwrap_or_else(|| self.default.to_owned());
        match self.set {
            Set::Bool(place) => place(settings).to_string(),
            Set::OptBool(place) => place(settings).unwrap_or(self.default == "true").to_string(),
            Set::I32(place) => place(settings).to_string(),
            Set::OptI32(place) => or_default(place(settings).map(|value| value.to_string())),
            Set::I64(place) => place(settings).to_string(),
            Set::OptI64(place) => or_default(place(settings).map(|value| value.to_string())),
            Set::Text(place) | Set::Ip(place) => place(settings).clone(),
            Set::OptText(place) => or_default(place(settings).clone()),
            Set::Path(place) => place(settings).display().to_string(),
            Set::Span(place) => place(settings).to_string(),
            Set::OptSpan(place) => or_default(place(settings).map(|value| value.to_string())),
            Set::Strings(place) => format!("[{}]", place(settings).join(",")),
            Set::Map(place) | Set::MapOrKeys(place) | Set::MapOnePair(place) => pairs(place(settings), '='),
            Set::MapLess(place) => pairs(place(settings), '<'),
            Set::Ignored(_) => {
                settings.flags.cadvisor.get(self.name).cloned().unwrap_or_else(|| self.default.to_owned())
            }
            Set::Custom(..) => custom(self, settings),
        }
    }
}

fn pairs(map: &TextMap, between: char) -> String {
    joined(map.iter().map(|(key, value)| format!("{key}{between}{value}")))
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

fn custom(flag: &Flag, settings: &Settings) -> String {
    let kubelet = &settings.kubelet;
    match flag.name {
        MASKED => joined(kubelet.static_pod_url_header.keys().map(|name| format!("{name}:<masked>"))),
        "feature-gates" => joined(kubelet.feature_gates.iter().map(|(gate, on)| format!("{gate}={on}"))),
        "register-with-taints" => joined(kubelet.register_with_taints.iter().map(|taint| {
            let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
            format!("{}{value}:{}", taint.key, taint.effect)
        })),
        "reserved-memory" => joined(kubelet.reserved_memory.iter().map(|node| {
            let limits = joined(node.limits.iter().map(|(name, amount)| format!("{name}={amount}")));
            format!("{}:{limits}", node.numa_node)
        })),
        "log-json-info-buffer-size" => kubelet.logging.options.json.info_buffer_size.to_string(),
        "log-text-info-buffer-size" => kubelet.logging.options.text.info_buffer_size.to_string(),
        "v" => kubelet.logging.verbosity.to_string(),
        "vmodule" => {
            joined(kubelet.logging.vmodule.iter().map(|item| format!("{}={}", item.file_pattern, item.verbosity)))
        }
        // Asked for on the command line alone.
        _ => "false".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[test]
    fn flags_that_were_set_are_shown() {
        let mut settings = Settings::default();
        let words = "--v=3 --root-dir /r --node-labels=b=2,a=1 --anonymous-auth=false --cluster-dns 10.0.0.1,10.0.0.2 \
                     --register-with-taints=k=v:NoSchedule,x:NoExecute --manifest-url-header=Secret:token \
                     --eviction-hard=memory.available<5% --feature-gates=NodeSwap=true --sync-frequency=90s";
        let words: Vec<String> = words.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        parse(&words, &mut settings).unwrap();
        let shown = effective(&settings.flags, &settings.kubelet);
        for (flag, value) in [
            ("v", "3"),
            ("root-dir", "/r"),
            ("node-labels", "a=1,b=2"),
            ("anonymous-auth", "false"),
            ("cluster-dns", "[10.0.0.1,10.0.0.2]"),
            ("register-with-taints", "k=v:NoSchedule,x:NoExecute"),
            ("manifest-url-header", "Secret:<masked>"),
            ("eviction-hard", "memory.available<5%"),
            ("feature-gates", "NodeSwap=true"),
            ("sync-frequency", "1m30s"),
            ("max-pods", "110"),
            ("version", "false"),
            ("containerd-namespace", "k8s.io"),
        ] {
            assert_eq!(shown.get(flag).map(String::as_str), Some(value), "{flag}");
        }
        assert_eq!(shown.len(), all().count());
    }
}
