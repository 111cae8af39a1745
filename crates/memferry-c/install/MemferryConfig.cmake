# find_package(Memferry) gives the targets Memferry::memferry (shared) and Memferry::memferry_static.
get_filename_component(_memferry_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

foreach(_memferry_kind SHARED STATIC)
    if(_memferry_kind STREQUAL "SHARED")
        set(_memferry_target Memferry::memferry)
        set(_memferry_file "${_memferry_prefix}/lib/libmemferry.so")
    else()
        set(_memferry_target Memferry::memferry_static)
        set(_memferry_file "${_memferry_prefix}/lib/libmemferry.a")
    endif()
    if(NOT TARGET ${_memferry_target})
        add_library(${_memferry_target} ${_memferry_kind} IMPORTED)
        set_target_properties(${_memferry_target} PROPERTIES
            IMPORTED_LOCATION "${_memferry_file}"
            INTERFACE_INCLUDE_DIRECTORIES "${_memferry_prefix}/include")
    endif()
endforeach()
set_property(TARGET Memferry::memferry_static PROPERTY
    INTERFACE_LINK_LIBRARIES gcc_s util rt pthread m dl)
