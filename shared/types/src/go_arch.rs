//! The machine's architecture in the words that the API, images and user agents have for it, which are Go's.

/// Of this build: `amd64`, `arm64`.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}
