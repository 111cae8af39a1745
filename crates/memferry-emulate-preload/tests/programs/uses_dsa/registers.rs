//! The effect of emulated instructions on registers, flags, red zone and errno.

use std::arch::asm;
use std::mem::zeroed;
use std::time::Duration;

use memferry_dsa::Descriptor;

use super::map;

/// ENQCMD and MOVDIR64B change the flags that they should, the red zone not at all, no register, and no errno.
pub(super) fn registers() {
    let portal = map("wq0.0");
    let descriptor = Descriptor::noop();
    #[repr(C)]
    #[derive(PartialEq, Debug, Clone, Copy)]
    struct Seen {
        general: [u64; 12],
        vectors: [[u64; 4]; 16],
        red: [u64; 16],
        flags: u64,
    }
    const ALL_FLAGS: u64 = 0x8d5;
    let has_avx = std::arch::is_x86_feature_detected!("avx");
    for round in 0..6 {
        for flags_before in [0, ALL_FLAGS] {
            let mut seen: Seen = unsafe { zeroed() };
            // The engine falls asleep, so that the submission needs a system call to wake it.
            std::thread::sleep(Duration::from_millis(5));
            let errno = unsafe { libc::__errno_location() };
            unsafe { *errno = 4711 };
            unsafe { look(portal, &descriptor, &mut seen, flags_before, has_avx) };
            assert_eq!(unsafe { *errno }, 4711, "round {round}");
            let general = std::array::from_fn(|index| 0x1111_0000 + index as u64);
            assert_eq!(seen.general, general, "round {round}");
            assert_eq!(seen.red, std::array::from_fn(|index| 0x2222_0000 + index as u64), "round {round}");
            for (index, vector) in seen.vectors.iter().enumerate() {
                let words = [0, 1, 2, 3].map(|word| 0x3333_0000 + 4 * index as u64 + word);
                assert_eq!(vector[..if has_avx { 4 } else { 2 }], words[..if has_avx { 4 } else { 2 }]);
            }
            // Accepted: all clear.
            assert_eq!(seen.flags & ALL_FLAGS, 0, "round {round}");
        }
    }

    /// One site, with known values in every register.
    #[inline(never)]
    unsafe fn look(portal: *mut u8, descriptor: &Descriptor, seen: &mut Seen, flags: u64, has_avx: bool) {
        let values: [u64; 12] = std::array::from_fn(|index| 0x1111_0000 + index as u64);
        let vectors: [u64; 64] = std::array::from_fn(|index| 0x3333_0000 + index as u64);
        let arguments: [u64; 7] = [
            portal as u64,
            descriptor as *const Descriptor as u64,
            &raw mut *seen as u64,
            values.as_ptr() as u64,
            vectors.as_ptr() as u64,
            flags,
            has_avx.into(),
        ];
        unsafe {
            asm!(
                "push rbx",
                "push rbp",
                "push rdi",
                // The red zone.
                "xor ecx, ecx",
                "2:",
                "lea rax, [rcx + 0x22220000]",
                "mov [rsp + rcx * 8 - 128], rax",
                "inc ecx",
                "cmp ecx, 16",
                "jne 2b",
                // Vectors.
                "mov rax, [rdi + 32]",
                "cmp qword ptr [rdi + 48], 0",
                "je 3f",
                "vmovdqu ymm0, [rax]", "vmovdqu ymm1, [rax + 32]", "vmovdqu ymm2, [rax + 64]",
                "vmovdqu ymm3, [rax + 96]", "vmovdqu ymm4, [rax + 128]", "vmovdqu ymm5, [rax + 160]",
                "vmovdqu ymm6, [rax + 192]", "vmovdqu ymm7, [rax + 224]", "vmovdqu ymm8, [rax + 256]",
                "vmovdqu ymm9, [rax + 288]", "vmovdqu ymm10, [rax + 320]", "vmovdqu ymm11, [rax + 352]",
                "vmovdqu ymm12, [rax + 384]", "vmovdqu ymm13, [rax + 416]", "vmovdqu ymm14, [rax + 448]",
                "vmovdqu ymm15, [rax + 480]",
                "jmp 4f",
                "3:",
                "movdqu xmm0, [rax]", "movdqu xmm1, [rax + 32]", "movdqu xmm2, [rax + 64]",
                "movdqu xmm3, [rax + 96]", "movdqu xmm4, [rax + 128]", "movdqu xmm5, [rax + 160]",
                "movdqu xmm6, [rax + 192]", "movdqu xmm7, [rax + 224]", "movdqu xmm8, [rax + 256]",
                "movdqu xmm9, [rax + 288]", "movdqu xmm10, [rax + 320]", "movdqu xmm11, [rax + 352]",
                "movdqu xmm12, [rax + 384]", "movdqu xmm13, [rax + 416]", "movdqu xmm14, [rax + 448]",
                "movdqu xmm15, [rax + 480]",
                "4:",
                // Flags, without touching the red zone: by a stack below it.
                "lea rsp, [rsp - 256]",
                "mov rax, [rdi + 40]",
                "pushfq",
                "or [rsp], rax",
                "popfq",
                "lea rsp, [rsp + 256]",
                // General registers, but rsp, rdi (arguments), rsi (portal) and r15 (descriptor).
                "mov rsi, [rdi]",
                "mov r15, [rdi + 8]",
                "mov rax, [rdi + 24]",
                "mov rcx, [rax + 8]", "mov rdx, [rax + 16]", "mov rbx, [rax + 24]", "mov rbp, [rax + 32]",
                "mov r8, [rax + 40]", "mov r9, [rax + 48]", "mov r10, [rax + 56]", "mov r11, [rax + 64]",
                "mov r12, [rax + 72]", "mov r13, [rax + 80]", "mov r14, [rax + 88]", "mov rax, [rax]",
                "enqcmd rsi, [r15]",
                // The results.
                "mov rdi, [rdi + 16]",
                "mov [rdi], rax", "mov [rdi + 8], rcx", "mov [rdi + 16], rdx", "mov [rdi + 24], rbx",
                "mov [rdi + 32], rbp", "mov [rdi + 40], r8", "mov [rdi + 48], r9", "mov [rdi + 56], r10",
                "mov [rdi + 64], r11", "mov [rdi + 72], r12", "mov [rdi + 80], r13", "mov [rdi + 88], r14",
                "lea rsp, [rsp - 256]",
                "pushfq",
                "pop rax",
                "lea rsp, [rsp + 256]",
                "mov [rdi + {flags}], rax",
                "xor ecx, ecx",
                "5:",
                "mov rax, [rsp + rcx * 8 - 128]",
                "mov [rdi + rcx * 8 + {red}], rax",
                "inc ecx",
                "cmp ecx, 16",
                "jne 5b",
                "lea rax, [rdi + {vectors}]",
                "pop rdi",
                "cmp qword ptr [rdi + 48], 0",
                "je 6f",
                "vmovdqu [rax], ymm0", "vmovdqu [rax + 32], ymm1", "vmovdqu [rax + 64], ymm2",
                "vmovdqu [rax + 96], ymm3", "vmovdqu [rax + 128], ymm4", "vmovdqu [rax + 160], ymm5",
                "vmovdqu [rax + 192], ymm6", "vmovdqu [rax + 224], ymm7", "vmovdqu [rax + 256], ymm8",
                "vmovdqu [rax + 288], ymm9", "vmovdqu [rax + 320], ymm10", "vmovdqu [rax + 352], ymm11",
                "vmovdqu [rax + 384], ymm12", "vmovdqu [rax + 416], ymm13", "vmovdqu [rax + 448], ymm14",
                "vmovdqu [rax + 480], ymm15",
                "vzeroupper",
                "jmp 7f",
                "6:",
                "movdqu [rax], xmm0", "movdqu [rax + 32], xmm1", "movdqu [rax + 64], xmm2",
                "movdqu [rax + 96], xmm3", "movdqu [rax + 128], xmm4", "movdqu [rax + 160], xmm5",
                "movdqu [rax + 192], xmm6", "movdqu [rax + 224], xmm7", "movdqu [rax + 256], xmm8",
                "movdqu [rax + 288], xmm9", "movdqu [rax + 320], xmm10", "movdqu [rax + 352], xmm11",
                "movdqu [rax + 384], xmm12", "movdqu [rax + 416], xmm13", "movdqu [rax + 448], xmm14",
                "movdqu [rax + 480], xmm15",
                "7:",
                "pop rbp",
                "pop rbx",
                flags = const std::mem::offset_of!(Seen, flags),
                red = const std::mem::offset_of!(Seen, red),
                vectors = const std::mem::offset_of!(Seen, vectors),
                inout("rdi") arguments.as_ptr() => _,
                out("rsi") _,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
                clobber_abi("sysv64"),
            );
        }
    }
}
