use super::*;

const GOOD: &str = "
apiVersion: v1
kind: Config
preferences: {}
current-context: here
clusters:
- name: other
  cluster: {server: https://x}
- name: prod
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority-data: Q0E=
    tls-server-name: kubernetes
    extensions:
    - name: client.authentication.k8s.io/exec
      extension: {audience: x}
contexts:
- {name: there, context: {cluster: other, user: nobody}}
- {name: here, context: {cluster: prod, user: node, namespace: ns}}
users:
- name: node
  user:
    client-certificate: /pki/current.pem
    client-key: /pki/current.pem
";

/// GOOD with another user.
fn with_user(user: &str) -> String {
    let head = GOOD.split("  user:\n    client-cert").next().unwrap();
    format!("{head}  user: {user}\n")
}

fn parse(text: &str) -> Result<Kubeconfig, KubeconfigError> {
    Kubeconfig::parse(text.as_bytes())
}

#[test]
fn the_current_context_is_resolved() {
    let config = parse(GOOD).unwrap();
    assert_eq!((config.context.as_str(), config.namespace.as_deref()), ("here", Some("ns")));
    assert_eq!(config.cluster.server, "https://10.0.0.1:6443");
    assert_eq!(config.cluster.certificate_authority, Some(Material::Data(b"CA".to_vec())));
    assert_eq!(config.cluster.tls_server_name.as_deref(), Some("kubernetes"));
    assert_eq!(config.cluster.exec_config, Some(serde_json::json!({"audience": "x"})));
    assert_eq!(config.user.client_key, Some(Material::File("/pki/current.pem".into())));
    assert!(!config.runs_program());
    let json = r#"{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c"}}],
        "clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:8080","insecure-skip-tls-verify":true}}],"users":null}"#;
    let config = parse(json).unwrap();
    assert!(config.cluster.insecure_skip_tls_verify);
    assert_eq!(config.user, User::default());
}

#[test]
fn every_way_to_say_who_we_are() {
    let user = |text: &str| parse(&with_user(text)).unwrap().user;
    let both = user("{token: t0p, tokenFile: /run/token}");
    assert_eq!((both.token.unwrap().expose(), both.token_file.as_deref()), ("t0p", Some("/run/token")));
    let basic = user("{username: u, password: p}").basic.unwrap();
    assert_eq!((basic.0.as_str(), basic.1.expose()), ("u", "p"));
    assert_eq!(user("{password: p}").basic, None);
    assert_eq!(user("{password: p, tokenFile: /t}").token_file.as_deref(), Some("/t"));
    let claimed = user("{token: x, as: a, as-uid: '7', as-groups: [g, h], as-user-extra: {k: [v]}}").impersonate;
    assert_eq!((claimed.user.as_str(), claimed.uid.as_str(), claimed.groups.len()), ("a", "7", 2));
    assert_eq!(claimed.extra, [("k".to_owned(), vec!["v".to_owned()])]);
    let exec = user(
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: helper, args: [a, b], interactiveMode: Never,
          env: [{name: A, value: '1'}, {name: B}], provideClusterInfo: true, installHint: get it}}",
    )
    .exec
    .unwrap();
    assert_eq!(exec.args, ["a", "b"]);
    assert_eq!(exec.env, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), String::new())]);
    assert!(exec.provide_cluster_info);
    assert!(user("{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: c}}").exec.is_some());
}

#[test]
fn an_entry_with_nothing_but_a_name_is_somebody_without_credentials() {
    let nobody = User { name: "node".to_owned(), ..User::default() };
    assert_eq!(parse(&with_user("null")).unwrap().user, nobody);
    assert_eq!(parse(&with_user("{}")).unwrap().user, nobody);
    assert_eq!(parse(&with_user("{}").replace("  user: {}\n", "")).unwrap().user, nobody);
    let error = parse(&with_user("nobody")).unwrap_err().to_string();
    assert_eq!(error, "users[0].user: must be a mapping");
    let error =
        parse(&GOOD.replace("  cluster: {server: https://x}\n", "").replace("cluster: prod,", "cluster: other,"));
    assert!(error.unwrap_err().to_string().starts_with("clusters[0].cluster: must be set"));
}

#[test]
fn a_program_runs_where_nothing_else_says_who_we_are() {
    const EXEC: &str = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: c}";
    let cases = [
        ("", true),
        ("password: p", true),
        ("as: somebody", true),
        ("token: t", false),
        ("tokenFile: /t", false),
        ("username: u", false),
        ("client-certificate: c, client-key: k", false),
        ("client-certificate-data: Q0E=, client-key-data: Q0E=", false),
    ];
    for (beside, runs) in cases {
        let config = parse(&with_user(&format!("{{{EXEC}, {beside}}}"))).unwrap();
        assert_eq!((config.user.program().is_some(), config.runs_program()), (runs, runs), "{beside}");
    }
    for (server, runs) in
        [("https://10.0.0.1", true), ("10.0.0.1", true), ("http://10.0.0.1", false), ("HTTP://x", false)]
    {
        let text = with_user(&format!("{{{EXEC}}}")).replace("https://10.0.0.1:6443", server);
        assert_eq!(parse(&text).unwrap().runs_program(), runs, "{server}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let v1 = "apiVersion: client.authentication.k8s.io/v1";
    let cases: Vec<(String, &str)> = vec![
        ("".into(), "current-context: must be set"),
        ("- a".into(), "the file: must be a mapping"),
        ("a: [".into(), "neither YAML nor JSON"),
        ("{}".into(), "current-context: must be set"),
        (GOOD.replace("kind: Config", "kind: Pod"), "kind: \"Pod\" is not supported; allowed: Config"),
        (GOOD.replace("apiVersion: v1", "apiVersion: v2"), "apiVersion: \"v2\""),
        (GOOD.replace("current-context: here", "current-context: [x]"), "current-context: must be text"),
        (GOOD.replace("current-context: here", "current-context: gone"), "contexts: there is no entry named \"gone\""),
        (GOOD.replace("cluster: prod,", "cluster: gone,"), "clusters: there is no entry named \"gone\""),
        (GOOD.replace("cluster: prod, ", ""), "contexts[1].context.cluster: must be set"),
        (GOOD.replace("user: node,", "user: gone,"), "users: there is no entry named \"gone\""),
        (GOOD.replace("name: other", "name: prod"), "clusters: the name \"prod\" appears more than once"),
        (GOOD.replace("server: https://10.0.0.1:6443", "server: ''"), "clusters[1].cluster.server: must be set"),
        (GOOD.replace("Q0E=", "Q0E"), "clusters[1].cluster.certificate-authority-data: is not valid base64"),
        (
            GOOD.replace("tls-server-name: kubernetes", "certificate-authority: /ca"),
            "clusters[1].cluster: certificate-authority and certificate-authority-data",
        ),
        (
            GOOD.replace("tls-server-name: kubernetes", "insecure-skip-tls-verify: true"),
            "insecure-skip-tls-verify and a certificate authority",
        ),
        (
            GOOD.replace("tls-server-name: kubernetes", "insecure-skip-tls-verify: 1"),
            "insecure-skip-tls-verify: must be true or false",
        ),
        (with_user("{client-key: k}"), "users[0].user.client-certificate: must be set"),
        (with_user("{client-certificate: k}"), "users[0].user.client-key: must be set"),
        (with_user("{token: 7}"), "users[0].user.token: must be text"),
        (with_user("{token: a, username: b}"), "users[0].user: a token and username or password"),
        (with_user("{token: a, password: b}"), "users[0].user: a token and username or password"),
        (with_user("{tokenFile: a, username: b}"), "users[0].user: a token and username or password"),
        (with_user("{auth-provider: {name: gcp}}"), "users[0].user.auth-provider: \"gcp\" is not supported"),
        (with_user("{as-groups: [a]}"), "users[0].user.as: must be set"),
        (with_user("{exec: {command: a}}"), "users[0].user.exec.apiVersion: must be set"),
        (with_user("{exec: {apiVersion: client.authentication.k8s.io/v1alpha1}}"), "v1alpha1\" is not supported"),
        (with_user(&format!("{{exec: {{{v1}, command: a}}}}")), "users[0].user.exec.interactiveMode: must be set"),
        (with_user(&format!("{{exec: {{{v1}, command: a, interactiveMode: Always}}}}")), "Never, IfAvailable"),
        (with_user(&format!("{{exec: {{{v1}, interactiveMode: Never}}}}")), "users[0].user.exec.command: must be set"),
        (
            with_user(&format!("{{exec: {{{v1}, command: a, interactiveMode: Never, env: [{{name: 'a=b'}}]}}}}")),
            "users[0].user.exec.env[0].name: must be without '='",
        ),
        (
            with_user(&format!("{{exec: {{{v1}, command: a, interactiveMode: Never, args: [1]}}}}")),
            "users[0].user.exec.args: must be a list of texts",
        ),
    ];
    for (text, expected) in cases {
        let error = parse(&text).expect_err(&text).to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    assert_eq!(Kubeconfig::parse(b"\xff"), Err(KubeconfigError::NotText));
    assert_eq!(Kubeconfig::parse(&vec![b' '; MAX_BYTES + 1]), Err(KubeconfigError::TooLarge));
}

#[test]
fn secrets_are_never_printed() {
    let config = parse(&with_user("{token: hunter2}")).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    for broken in ["token: \"hunter2", "a: *hunter2", "{\"token\": \"hunter2\"", "token: 'hunter2' x"] {
        if let Err(error) = parse(broken) {
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let _ = Kubeconfig::parse(&bytes);
    }

    /// Any piece of a good file, with any line put in: refused or taken, never a panic.
    #[test]
    fn no_mutation_panics(from in 0..600_usize, to in 0..600_usize, line in "[ a-z:{}\\[\\]'\"\\-#&*!|>]{0,20}") {
        let at = |index: usize| (0..=index.min(GOOD.len())).rev().find(|i| GOOD.is_char_boundary(*i)).unwrap_or(0);
        let text = format!("{}\n{line}\n{}", &GOOD[..at(from)], &GOOD[at(to)..]);
        let _ = parse(&text);
    }
}
