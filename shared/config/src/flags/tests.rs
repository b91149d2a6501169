//! The command line, flag by flag and rule by rule.

use proptest::prelude::*;

use super::*;

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

fn parsed(line: &[&str]) -> Settings {
    let mut settings = Settings::default();
    parse(&words(line), &mut settings).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    settings
}

fn refusal(line: &[&str]) -> String {
    parse(&words(line), &mut Settings::default()).expect_err(&format!("{line:?}")).to_string()
}

/// A good value of a flag's type, and one that is refused where there is one.
fn samples(flag: &Flag) -> (&'static str, Option<&'static str>) {
    match flag.set {
        Set::Bool(_) | Set::OptBool(_) | Set::Ignored(IgnoredType::Bool) => ("false", Some("maybe")),
        Set::I32(_) | Set::OptI32(_) => ("7", Some("2147483648")),
        Set::I64(_) | Set::OptI64(_) | Set::Ignored(IgnoredType::Int) => ("7", Some("seven")),
        Set::Text(_) | Set::OptText(_) | Set::Path(_) | Set::Ignored(IgnoredType::Text) => ("x", None),
        Set::Ip(_) => ("::1", Some("localhost")),
        Set::Span(_) | Set::OptSpan(_) | Set::Ignored(IgnoredType::Span) => ("1m30s", Some("90")),
        Set::Strings(_) => ("a,b", Some("\"a")),
        Set::Map(_) | Set::MapOnePair(_) => ("a=b", Some("a")),
        Set::MapOrKeys(_) => ("a=b", None),
        Set::MapLess(_) => ("memory.available<1Gi", Some("memory.available=1Gi")),
        Set::Custom(name, _) => match name {
            "mapStringBool" => ("EventedPLEG=true", Some("EventedPLEG=perhaps")),
            "colonSeparatedMultimapStringString" => ("a:b", Some("a=b")),
            "[]v1.Taint" => ("a=b:NoSchedule", Some("a=b:Never")),
            "reserved-memory" => ("0:memory=1Gi", Some("0=1Gi")),
            "version" => ("raw", Some("1.36")),
            "quantity" => ("1Ki", Some("1KiB")),
            "Level" => ("4", Some("-1")),
            "pattern=N,..." => ("a=1", Some("a")),
            other => panic!("no samples for {other}"),
        },
    }
}

#[test]
fn every_flag_takes_its_type_and_refuses_another() {
    for flag in all() {
        let (good, bad) = samples(flag);
        parsed(&[&format!("--{}={good}", flag.name)]);
        parsed(&[&format!("--{}={good}", flag.name.replace('-', "_"))]);
        if flag.bare().is_some() {
            parsed(&[&format!("--{}", flag.name)]);
        } else {
            parsed(&[&format!("--{}", flag.name), good]);
            assert!(
                refusal(&[&format!("--{}", flag.name)]).contains(&format!("flag needs an argument: --{}", flag.name))
            );
        }
        if let Some(bad) = bad {
            let text = refusal(&[&format!("--{}={bad}", flag.name)]);
            assert!(
                text.starts_with("failed to parse kubelet flag: invalid argument") && text.contains(flag.name),
                "{text}"
            );
        }
    }
}

#[test]
fn the_table_is_upstreams() {
    const OUR_OWN: [&str; 5] = [
        "allow-streaming-with-get",
        "device-plugin-no-wait",
        "eviction-exclude-active-page-cache",
        "flexvolume",
        "vsock-port",
    ];
    let mut names: Vec<_> = all().map(|flag| flag.name).filter(|name| !OUR_OWN.contains(name)).collect();
    assert_eq!(names.len() + OUR_OWN.len(), all().count());
    assert_eq!(names.len(), 150, "flags of upstream 1.36 on Linux");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 150, "each name once");
    assert_eq!(all().filter(|flag| flag.group == Group::Configuration && flag.deprecated.is_none()).count(), 2);
    for flag in all() {
        assert!(!flag.usage.is_empty() && !flag.usage.ends_with('.'), "{}", flag.name);
    }
}

#[test]
fn shown_defaults_are_the_defaults() {
    for flag in all().filter(|flag| !flag.default.is_empty()) {
        let mut settings = Settings::default();
        let before = format!("{settings:?}");
        flag.apply(&mut settings, flag.default, true).unwrap();
        settings.flags.cadvisor.clear();
        assert_eq!(before, format!("{settings:?}"), "--{}", flag.name);
    }
}

#[test]
fn forms_of_writing() {
    assert_eq!(parsed(&["--port", "1"]).kubelet.port, 1);
    assert_eq!(parsed(&["--port=1", "--port=2"]).kubelet.port, 2);
    assert_eq!(parsed(&["--fail_swap_on=false"]).kubelet.fail_swap_on, Some(false));
    assert_eq!(parsed(&["-v", "4"]).kubelet.logging.verbosity, 4);
    assert_eq!(parsed(&["-v=4"]).kubelet.logging.verbosity, 4);
    assert_eq!(parsed(&["-v4"]).kubelet.logging.verbosity, 4);
    assert!(parsed(&["-h"]).help);
    assert!(parsed(&["-hv3"]).help);
    assert_eq!(parsed(&["--config="]).flags.config, "");
    // A boolean never takes the next word: here it is a stray one.
    assert_eq!(refusal(&["--fail-swap-on", "false"]), "unknown command false");
    assert_eq!(refusal(&["run"]), "unknown command run");
    assert_eq!(refusal(&["--", "--port"]), "unknown command --port");
    assert_eq!(refusal(&["-"]), "unknown command -");
    assert_eq!(refusal(&["--nope"]), "failed to parse kubelet flag: unknown flag: --nope");
    assert_eq!(refusal(&["--nope=1"]), "failed to parse kubelet flag: unknown flag: --nope");
    assert_eq!(refusal(&["-x"]), "failed to parse kubelet flag: unknown shorthand flag: 'x' in -x");
    assert_eq!(refusal(&["--=x"]), "failed to parse kubelet flag: bad flag syntax: --=x");
    assert_eq!(refusal(&["-v"]), "failed to parse kubelet flag: flag needs an argument: 'v' in -v");
    assert_eq!(
        refusal(&["--port=x"]),
        "failed to parse kubelet flag: invalid argument \"x\" for \"--port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax"
    );
    for removed in [
        "cloud-config",
        "container-runtime",
        "pod-infra-container-image",
        "logtostderr",
        "network-plugin",
        "register-schedulable",
    ] {
        assert!(refusal(&[&format!("--{removed}=x")]).contains("unknown flag"), "{removed}");
    }
}

#[test]
fn absolute_paths_are_cleaned() {
    for (given, path) in
        [("/x/", "/x"), ("//x//y", "/x/y"), ("/x/./y/../z/", "/x/z"), ("/", "/"), ("x/", "x/"), ("", "")]
    {
        let flags = parsed(&[&format!("--root-dir={given}"), &format!("--cert-dir={given}")]).flags;
        assert_eq!((flags.root_dir.to_str(), flags.cert_dir.to_str()), (Some(path), Some(path)));
    }
}

#[test]
fn lists_and_maps() {
    assert_eq!(parsed(&["--cluster-dns=1.1.1.1,2.2.2.2", "--cluster-dns=3.3.3.3"]).kubelet.cluster_dns.len(), 3);
    assert_eq!(parsed(&["--enforce-node-allocatable="]).kubelet.enforce_node_allocatable, Vec::<String>::new());
    assert_eq!(parsed(&["--enforce-node-allocatable=none"]).kubelet.enforce_node_allocatable, ["none"]);
    let labels = parsed(&["--node-labels=a=1, b = 2,,", "--node-labels=c=x=y"]).flags.node_labels;
    assert_eq!(labels.iter().map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>(), ["a:1", "b:2", "c:x=y"]);
    let labels = parsed(&["--node-labels= key ,a=,b=1", "--node-labels=other"]).flags.node_labels;
    assert_eq!(labels.iter().map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>(), ["a:", "b:1", "key:", "other:"]);
    let hard = parsed(&["--eviction-hard=memory.available<1Gi,nodefs.available<5%"]).kubelet.eviction_hard;
    assert_eq!(hard["nodefs.available"], "5%");
    let options = parsed(&["--cpu-manager-policy-options=a=b,c", "--cpu-manager-policy-options=d=e"])
        .kubelet
        .cpu_manager_policy_options;
    assert_eq!((options["a"].as_str(), options["d"].as_str()), ("b,c", "e"));
    let headers = parsed(&["--manifest-url-header=a:1,b:2", "--manifest-url-header=a:3"]).kubelet.static_pod_url_header;
    assert_eq!(headers["a"], ["1", "3"]);
    assert!(!refusal(&["--manifest-url-header=Secret=abc"]).contains("abc"));
    let gates = parsed(&["--feature-gates=A=true,B=false", "--feature-gates=A=0"]).kubelet.feature_gates;
    assert_eq!((gates["A"], gates["B"]), (false, false));
    let taints =
        parsed(&["--register-with-taints=x:NoSchedule", "--register-with-taints=a=b:NoExecute,c:PreferNoSchedule"])
            .kubelet
            .register_with_taints;
    assert_eq!(taints.len(), 2);
    assert_eq!((taints[0].value.as_str(), taints[1].value.as_str()), ("b", ""));
    let memory =
        parsed(&["--reserved-memory=0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi", "--reserved-memory=2:memory=1"])
            .kubelet
            .reserved_memory;
    assert_eq!((memory.len(), memory[0].limits.len()), (3, 2));
    assert_eq!(parsed(&["--vmodule=a=1,b=2"]).kubelet.logging.vmodule.len(), 2);
    for bad in ["--reserved-memory=0:cpu=1", "--reserved-memory=a:memory=1", "--reserved-memory=0:memory"] {
        refusal(&[bad]);
    }
}

/// As upstream's `pkg/util/taints` ParseTaints.
#[test]
fn taints() {
    let taken = |text: &str| {
        let taints = parsed(&[&format!("--register-with-taints={text}")]).kubelet.register_with_taints;
        taints
            .iter()
            .map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect))
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (text, taints) in [
        ("", ""),
        ("foo=abc:NoSchedule,bar:NoExecute", "foo=abc:NoSchedule bar=:NoExecute"),
        ("foo=abc:NoSchedule,foo:NoExecute", "foo=abc:NoSchedule foo=:NoExecute"),
        ("foo:NoSchedule-", ""),
        ("foo-", ""),
        ("foo=abc:NoSchedule-,bar:NoSchedule,foo-", "bar=:NoSchedule"),
        ("bar:NoSchedule,bar:NoSchedule-", "bar=:NoSchedule"),
    ] {
        assert_eq!(taken(text), taints, "{text}");
    }
    for (text, why) in [
        ("foo", "invalid taint spec: foo"),
        ("foo=abc", "invalid taint spec: foo=abc, "),
        ("foo=abc:NoSchedule:x", "invalid taint spec: foo=abc:NoSchedule:x"),
        ("foo=a=b:NoSchedule", "invalid taint spec: foo=a=b:NoSchedule"),
        ("foo=abc:Never", "invalid taint effect: Never, unsupported taint effect"),
        ("foo:Never-", "invalid taint effect: Never, unsupported taint effect"),
        ("foo=a/b:NoSchedule", "invalid taint spec: foo=a/b:NoSchedule, "),
        ("a/b/c:NoExecute", "invalid taint spec: a/b/c:NoExecute, "),
        ("-", "invalid taint spec: , "),
        ("foo:NoSchedule,", "invalid taint spec: , "),
        ("a:NoSchedule,a=b:NoSchedule", "duplicated taints with the same key and effect: a:NoSchedule"),
    ] {
        let refused = refusal(&[&format!("--register-with-taints={text}")]);
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn deprecations_are_noted() {
    let mut settings = Settings::default();
    let notes =
        parse(&words(&["--port=1", "--config=x", "--v=2", "--maximum-dead-containers=3"]), &mut settings).unwrap();
    assert_eq!(notes.len(), 2);
    assert!(notes[0].starts_with("Flag --port has been deprecated, "));
}

#[test]
fn versions() {
    assert_eq!(parsed(&["--version"]).version, VersionRequest::Short);
    assert_eq!(parsed(&["--version=true"]).version, VersionRequest::Short);
    assert_eq!(parsed(&["--version=false"]).version, VersionRequest::None);
    assert_eq!(parsed(&["--version=raw"]).version, VersionRequest::Raw);
    assert_eq!(parsed(&["--version=v1.36.0-x"]).version, VersionRequest::Report("v1.36.0-x".into()));
    assert!(refusal(&["--version=v1.35.0"]).contains("must match"));
}

#[test]
fn help_names_every_flag_within_the_width() {
    let text = help();
    for flag in all() {
        assert!(text.contains(&format!("--{}", flag.name)), "{}", flag.name);
    }
    assert!(text.contains("(default 10250)") && text.contains("DEPRECATED") && text.contains("-v, --v Level"));
    for line in text.lines() {
        assert!(line.len() <= 121, "{line}");
    }
}

proptest! {
    #[test]
    fn nothing_panics(line in proptest::collection::vec("\\PC{0,30}", 0..4)) {
        let _ = parse(&line, &mut Settings::default());
    }

    #[test]
    fn no_value_panics(index in 0_usize..150, value in "\\PC{0,30}") {
        let flag = all().nth(index).unwrap();
        let _ = parse(&[format!("--{}={value}", flag.name)], &mut Settings::default());
    }
}
