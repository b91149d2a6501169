//! Header blocks: names and values in a zlib stream of the connection's life, begun with the dictionary that SPDY/3 fixes.
//!
//! A zlib stream may hold its bytes uncompressed. Ours does: five streams with one short header each are not worth the
//! 256 KiB that a compressor keeps, and what is sent is known byte by byte.

use bytes::{BufMut as _, BytesMut};

/// Deflate with a window of 32 KiB, a dictionary; then the Adler-32 of the dictionary.
const ZLIB_HEAD: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
/// A stored block without content: what a decompressor needs to give out all that came before it (zlib's sync flush).
const FLUSH: [u8; 5] = [0x00, 0x00, 0x00, 0xff, 0xff];

/// The sending direction's zlib stream.
#[derive(Debug, Default)]
pub struct HeaderBlocks {
    begun: bool,
}

impl HeaderBlocks {
    /// The block for `headers`, whose names have to be in lower case.
    pub fn encode(&mut self, headers: &[(&str, &str)]) -> BytesMut {
        let mut plain = BytesMut::new();
        put_length(&mut plain, headers.len());
        for (name, value) in headers {
            for text in [name, value] {
                put_length(&mut plain, text.len());
                plain.put_slice(text.as_bytes());
            }
        }
        let mut block = BytesMut::with_capacity(plain.len() + 32);
        if !self.begun {
            self.begun = true;
            block.put_slice(&ZLIB_HEAD);
        }
        for part in plain.chunks(usize::from(u16::MAX)) {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            block.put_u8(0);
            block.put_u16_le(length);
            block.put_u16_le(!length);
            block.put_slice(part);
        }
        block.put_slice(&FLUSH);
        block
    }
}

fn put_length(out: &mut BytesMut, length: usize) {
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

#[cfg(test)]
mod tests {
    use flate2::Decompress;

    use super::super::peer::inflate;
    use super::*;

    #[test]
    fn a_zlib_decompressor_with_the_dictionary_reads_every_block() {
        let mut blocks = HeaderBlocks::default();
        let mut context = Decompress::new(true);
        let first = blocks.encode(&[("streamtype", "error")]);
        assert_eq!(
            inflate(&mut context, &first).unwrap(),
            b"\x00\x00\x00\x01\x00\x00\x00\x0astreamtype\x00\x00\x00\x05error"
        );
        let second = blocks.encode(&[("port", "80"), ("requestid", "0")]);
        assert_eq!(
            inflate(&mut context, &second).unwrap(),
            b"\x00\x00\x00\x02\x00\x00\x00\x04port\x00\x00\x00\x0280\x00\x00\x00\x09requestid\x00\x00\x00\x010"
        );
        let long = "x".repeat(140_000);
        let third = blocks.encode(&[("long", &long)]);
        assert_eq!(inflate(&mut context, &third).unwrap().len(), 4 + 4 + 4 + 4 + long.len());
    }

    #[test]
    fn the_bytes_of_a_first_block() {
        assert_eq!(
            HeaderBlocks::default().encode(&[("a", "b")]).as_ref(),
            b"\x78\xbb\xe3\xc6\xa7\xc2\x00\x0e\x00\xf1\xff\x00\x00\x00\x01\x00\x00\x00\x01a\x00\x00\x00\x01b\x00\x00\x00\xff\xff"
        );
    }
}
